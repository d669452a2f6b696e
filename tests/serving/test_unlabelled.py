"""Newcomers in a file without labels: placed by methods that look at inputs alone, refused by the others."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from conftest import raises
from coterie.core.tasks import Local
from coterie.serving.assign import assign
from coterie.serving.predict_table import predict_table

LOCAL = Local(epochs=3, batch=8, lr=0.1)
METHODS: dict[str, Any] = {
    "flux": coterie.FLUX(k=2, warmup=1, classes=0, local=LOCAL),
    "pacfl": coterie.PACFL(k=2, rank=1, local=LOCAL),
}


def samples(client: int) -> tuple[Any, Any]:
    """Of two kinds, that differ in where their inputs are and in which side of it is 1."""
    rng, kind = np.random.default_rng(client), client % 2
    x = rng.normal(size=(40, 2)) + ([4, 0] if kind else [0, 4])
    return x.astype(np.float32), (x[:, 1 - kind] > 0).astype(np.int64) ^ kind


@cache
def result(name: str) -> Any:
    clients = coterie.Federation.from_arrays(
        [samples(c) for c in range(6)], names=[f"c{c}" for c in range(6)], standardise=False
    )
    return coterie.run(METHODS[name], clients, "linear", rounds=3)


def write(path: Path, labels: bool) -> Path:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["client", "a", "b", *(["y"] if labels else [])])
        for client in (8, 9):
            for row, label in zip(*samples(client), strict=True):
                out.writerow([f"new {client}", *row.tolist(), *([label] if labels else [])])
    return path


@pytest.mark.parametrize("name", METHODS)
def test_they_go_where_they_would_go_with_labels(name: str, tmp_path: Path) -> None:
    done = result(name)
    with_labels = assign(done, write(tmp_path / "labelled.csv", True), client="client", y="y")
    without = assign(done, write(tmp_path / "plain.csv", False), client="client")
    assert [one.cluster for one in without] == [one.cluster for one in with_labels]
    assert [one.cluster for one in without] == done.assignments[:2].tolist()  # of each kind one
    assert len({one.cluster for one in without}) == 2
    for one in without:
        assert (one.confidence, one.fits, one.accuracy, one.loss, one.samples, one.problem) == (*[None] * 4, 0, "")
    assert all(one.accuracy is not None for one in with_labels)


@pytest.mark.parametrize("name", METHODS)
def test_their_rows_are_predicted(name: str, tmp_path: Path) -> None:
    found = predict_table(result(name), write(tmp_path / "plain.csv", False), client_column="client").columns
    assert found is not None
    truth = np.concatenate([samples(client)[1] for client in (8, 9)])
    assert float(np.mean(np.array(found["prediction"], dtype=np.int64) == truth)) > 0.8


def test_methods_that_place_by_labels_still_ask_for_them(tmp_path: Path) -> None:
    clients = coterie.Federation.from_arrays([samples(c) for c in range(6)], standardise=False)
    plain = write(tmp_path / "plain.csv", False)
    for method in (coterie.WeCFL(k=2, local=LOCAL), coterie.PACFL(k=2, rank=1, classes=2, local=LOCAL)):
        done = coterie.run(method, clients, "linear", rounds=1)
        with raises("data-column-unknown", match="of labels, by which clients are placed"):
            assign(done, plain, client="client")
        with raises("client-unknown", match="of labels to place them by"):
            predict_table(done, plain, client_column="client")
