"""After training: a run is read back, newcomers find their place, predictions are made, and nobody is retrained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie import CoterieError, Federation, Local, WeCFL

LOCAL = Local(epochs=5, batch="full", lr=0.5)
RULES = np.array([[4.0, 0.0], [-4.0, 0.0]])  # the two groups label by the sign of the first number, in opposite ways


def federation(groups: list[int], seed: int) -> Federation:
    """Clients of forty samples each, labelled by the rule of their group."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(40, 2)).astype(np.float32) for _ in groups]
    return Federation.from_arrays(
        [(xs, (xs @ RULES[g] > 0).astype(np.int64)) for xs, g in zip(x, groups, strict=True)], truth=groups
    )


def test_newcomers_join_the_cluster_of_their_kind_and_nobody_changes() -> None:
    result = coterie.run(WeCFL(k=2, local=LOCAL), federation([0, 0, 1, 1, 0], 0), "linear", rounds=5)
    before = result.state.centers.clone()
    placed = result.admit(federation([1, 0, 1], 7))
    of_zero, of_one = result.assignments[0], result.assignments[2]
    assert of_zero != of_one
    assert placed.assignments.tolist() == [of_one, of_zero, of_one]
    assert placed.clients.ids.tolist() == [5, 6, 7]  # behind the five that were trained on
    assert torch.equal(result.state.centers, before)
    assert float(placed.clients.accuracy.min()) > 0.8
    # The newcomer of group 1 says 1 where the first number is negative, that of group 0 where it is positive.
    x = np.array([[3.0, 0.0], [-3.0, 0.0]], dtype=np.float32)
    assert placed.predict(0, x).tolist() == [0, 1]
    assert placed.predict(1, x).tolist() == [1, 0]


def test_a_newcomer_with_bad_data_is_refused_by_number() -> None:
    result = coterie.run(WeCFL(k=2, local=LOCAL), federation([0, 1], 0), "linear", rounds=1)
    bad = Federation.from_arrays([(np.full((5, 2), np.nan), np.zeros(5, dtype=np.int64))])
    with pytest.raises(CoterieError, match="client 0 has NaN"):
        result.admit(bad)


def test_a_run_is_read_back_as_it_ended(tmp_path: Path) -> None:
    from coterie.cli import _run
    from coterie.config import read

    words = ["data.partition.clients=8", "rounds=3", "method.name=ditto", "local.epochs=1"]
    result = _run(read(None, words), tmp_path / "run", False, True)
    again = coterie.load(tmp_path / "run")
    assert torch.equal(again.state, result.state)
    assert again.summary == result.summary  # Ditto's personal models are in the checkpoint too
    assert again.assignments.tolist() == result.assignments.tolist()


def test_what_is_no_run_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"no config\.yaml"):
        coterie.load(tmp_path)
