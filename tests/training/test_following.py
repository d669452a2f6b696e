"""How a method followed data that changed: worked out by hand, and of real runs, also of interrupted ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.core.local import Local
from coterie.data import Drift, Rotated, changing
from coterie.data.federation import Federation
from coterie.training.drift_scores import Following, changes_in, mean_since, waits_after
from coterie.training.events import RoundDone

L = Local(epochs=1, batch=8, lr=0.1)


def test_waits_by_hand() -> None:
    rounds = [1, 2, 3, 4, 5, 6, 7, 8]
    ari = [1.0, 1.0, 0.5, 0.9, 1.0, 0.2, 0.89, 0.3]
    assert waits_after([3], rounds, ari, 8) == (1,)  # 0.9 is enough
    assert waits_after([3, 6], rounds, ari, 8) == (1, None)
    assert waits_after([3, 4], rounds, ari, 8) == (None, 0)  # what is found after the next change is not of this one
    assert waits_after([5], rounds, ari, 8) == (0,)  # nothing was lost
    assert waits_after([3], [2, 5, 8], [1.0, np.nan, 0.95], 8) == (5,)  # of rounds that were evaluated
    assert waits_after([3], [2, 8], [1.0, 0.95], 7) == (None,)  # which is beyond the end


def test_mean_since_the_first_change_by_hand() -> None:
    assert mean_since(3, [1, 2, 3, 4, 5], [0.0, 0.0, 0.5, np.nan, 0.7]) == pytest.approx(0.6)
    assert mean_since(9, [1, 2], [0.1, 0.2]) is None


def test_in_words() -> None:
    found = Following((13, 18), (0, None), 0.8764, 0.4)
    assert str(found) == (
        "the data changed in round 13, 18; rounds until the ARI was 0.9 or more: 0, never; "
        "mean since the first change: accuracy 87.6 %"
    )
    assert str(Following((8,), None, None, 0.4)) == "the data changed in round 8; mean since the first change: loss 0.4"


@cache
def data() -> Federation:
    return coterie.federate("digits", Rotated(clients=8, angles=(0, 180)), drift=Drift("staggered", 3, 2, 2), seed=0)


def run(method: Any, clients: Federation | None = None, **more: Any) -> Any:
    settings: dict[str, Any] = {"rounds": 6, "engine": "batched", "seed": 3} | more
    return coterie.run(method, data() if clients is None else clients, "linear", **settings)


def test_the_oracle_needs_no_round_and_one_model_never_finds_them() -> None:
    oracle, one = run(coterie.Oracle(local=L)), run(coterie.FedAvg(local=L))
    assert oracle.following.changes == (3, 5)
    assert oracle.following.waits == (0, 0)
    assert one.following.waits == (None, None)
    accuracy = [event.summary.accuracy for event in oracle.history]
    assert oracle.following.accuracy == pytest.approx(np.mean(accuracy[2:]))
    assert oracle.following.loss == pytest.approx(np.mean([event.summary.loss for event in oracle.history][2:]))


def test_only_of_data_that_changes_and_of_changes_that_came() -> None:
    assert run(coterie.FedAvg(local=L), coterie.federate("digits", Rotated(clients=4)), rounds=1).following is None
    assert run(coterie.FedAvg(local=L), rounds=2).following is None
    assert run(coterie.Oracle(local=L), rounds=4).following.changes == (3,)
    pool = coterie.federate("digits", Rotated(clients=4), seed=0)
    assert changes_in(changing(pool, {1: [0, 1], 3: [0, 1], 4: [2, 1]})) == (4,)  # nothing is new in round 3
    assert changes_in(pool) == ()


def test_a_regression_has_its_loss_and_without_a_truth_nothing_is_found() -> None:
    rng = np.random.default_rng(0)
    pool = Federation.from_arrays(
        [(rng.normal(size=(20, 2)), rng.normal(size=20)) for _ in range(4)], standardise=False, standardise_y=False
    )
    found = run(coterie.FedAvg(local=L), changing(pool, {1: [0, 1], 2: [2, 3]}), rounds=3).following
    assert (found.changes, found.waits, found.accuracy) == ((2,), None, None)
    assert found.loss > 0


def test_a_resumed_run_counts_the_rounds_of_before(tmp_path: Path) -> None:
    def stop(event: object) -> None:
        if isinstance(event, RoundDone) and event.round == 4:
            raise KeyboardInterrupt

    method = coterie.IFCA(k=2, local=L)
    with pytest.raises(KeyboardInterrupt):
        run(method, out=tmp_path / "run", listeners=[stop], checkpoint_every=1)
    resumed = run(method, out=tmp_path / "run", resume=True, checkpoint_every=1)
    assert len(resumed.history) < 6
    assert resumed.following == run(method).following
    assert coterie.load(tmp_path / "run").following == resumed.following  # without its data
