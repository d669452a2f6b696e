"""Mistakes that need no data, or no training, are refused before either; and clients that were left out are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import coterie
from conftest import raises
from coterie.core.errors import CoterieError
from coterie.core.tasks import Local
from coterie.data import CSV
from coterie.data.sets.images import Digits
from coterie.training.build import build
from coterie.training.config import read
from coterie.training.execute import execute

HEADER = "a,b,y,client"


def table(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return str(path)


def rows(clients: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [f"{rng.normal():.3f},{rng.normal():.3f},{i % 2},c{i % clients}" for i in range(30 * clients)]


def test_a_directory_in_use_is_refused_before_the_data_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unread(_: Digits) -> None:
        raise AssertionError("the data was read")

    monkeypatch.setattr(Digits, "__call__", unread)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("rounds: 1\n")
    with raises("run-exists", match="exists already; choose another directory, or resume it"):
        execute(read(None), tmp_path / "run")
    file = Path(table(tmp_path / "t.csv", []))
    with pytest.raises(CoterieError, match=r"t\.csv: is a file; name a directory") as refused:
        execute(read(None), file)
    assert "--resume" not in str(refused.value)


def test_more_clusters_than_clients_are_refused_before_the_rate_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def searched(*_: object) -> None:
        raise AssertionError("the rate was searched")

    monkeypatch.setattr("coterie.training.learning_rate._search", searched)
    data = coterie.federate(CSV(table(tmp_path / "t.csv", rows(3)), "y"))
    with raises("config-invalid-value", match="method.k: 4 clusters for 3 clients"):
        coterie.run(coterie.WeCFL(k=4, local=Local(epochs=1, lr="auto")), data, "linear", rounds=1)


def test_clients_with_too_few_samples_are_named_and_explained(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", [*rows(4), "1,1,0,Tiny"])
    data = coterie.federate(CSV(path, "y"))
    assert data.describe().endswith(", 1 client with too few samples left out")
    assert ", 1 client with too few samples left out, checksum " in data.identity()  # as checkpoints have it
    assert any(one.endswith("fewer than 2 samples, one of them to train on: client 'Tiny'") for one in data.remarks)
    config = read(
        None, ["data.name=csv", f"data.path={path}", "data.y=y", "rounds=1", "method.name=wecfl", "method.k=2"]
    )
    execute(config, tmp_path / "run")
    result = coterie.load(tmp_path / "run")
    with raises("client-unknown", match="client 'Tiny' is in no cluster: it had too few samples and was left out"):
        result.explain("Tiny")
    with raises("client-unknown", match="no client has the name 'Nobody'"):
        result.explain("Nobody")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("local.lr=abc", "local.lr: must be a number or 'auto' (got 'abc')"),
        ("local.batch=abc", "local.batch: must be a whole number or 'full' (got 'abc')"),
        ("participation=x", "participation: must be a number (got 'x')"),
        ("rounds=0", "rounds: must be greater than 0 (got 0)"),
        ("seed=1.5", "seed: must be a whole number (got 1.5)"),
        ("method.nam=wecfl", "method.nam: unknown key. Did you mean 'name'?"),
        ("data.nam=csv", "data.nam: unknown key. Did you mean 'name'?"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(word: str, said: str) -> None:
    with pytest.raises(CoterieError) as refused:
        build(read(None, [word]))
    assert str(refused.value).startswith(said)
