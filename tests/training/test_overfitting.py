"""A run that ended past its best round is warned of, with the round and the remedy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.core.metrics import Summary
from coterie.methods.local_only import LocalOnly
from coterie.training import warnings as run_warnings
from coterie.training.events import RoundDone
from coterie.training.warnings import _overfits

NOBODY: Any = SimpleNamespace(names=None)


def scores(losses: Sequence[float], accuracies: Sequence[float] | None = None, every: int = 1) -> list[RoundDone]:
    summaries = [
        Summary(loss, None if accuracies is None else accuracies[i], None, 1, (4,), None, None)
        for i, loss in enumerate(losses)
    ]
    return [RoundDone(every * (i + 1), 4, 4, (), 1, 0.1, one) for i, one in enumerate(summaries)]


def test_the_warning_names_the_round_and_the_remedy() -> None:
    """Means of three: 20/3 + ... the least is that of 5, 4, 5 around round 4; the last of 6, 7, 8 is 7."""
    said = _overfits(scores([9, 7, 5, 4, 5, 6, 7, 8]), NOBODY)
    assert said == (
        "the error was least around round 4 (loss 4.6667) and is 50% larger since (7.0000 in round 8): later rounds "
        "overfit; validation=0.2 and stop_after=5 end a run when it no longer gets better on held-out samples"
    )


@pytest.mark.parametrize(
    "losses",
    [
        [9, 8, 7, 6, 5, 4, 3, 2],  # still better
        [9, 5, 4, 4, 4.05, 4.1, 4.1, 4.1],  # 2 % worse is nothing
        [9, 5, 4.5, 4, 4.2, 1, 4.3, 4.1],  # one lucky round, in the last means too
        [5, 4, 5, 8, 9],  # too few to tell
        [9, 5, math.nan, math.nan, math.nan, math.nan, math.nan],
    ],
)
def test_no_warning_where_nothing_is_clear(losses: list[float]) -> None:
    assert _overfits(scores(losses), NOBODY) is None


def test_of_classes_accuracy_counts_and_not_the_loss() -> None:
    assert _overfits(scores([9, 5, 4, 5, 6, 7, 8], [0.5, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7]), NOBODY) is None
    said = _overfits(scores([1] * 8, [0.5, 0.7, 0.8, 0.8, 0.8, 0.7, 0.7, 0.7]), NOBODY)
    assert said is not None
    assert said.startswith("accuracy was best around round 4 (80.0%) and fell to 70.0%: later rounds overfit;")


def test_scores_before_the_last_change_of_the_data_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    history = scores([4, 3, 2, 2, 2, 8, 7, 6, 6, 6, 5.9])
    assert _overfits(history, NOBODY) is not None
    monkeypatch.setattr(run_warnings, "changes_in", lambda _: (6, 60))  # round 60 never came
    assert _overfits(history, NOBODY) is None


def test_a_run_says_so(tmp_path: Any) -> None:
    """Twenty-five samples, of which noise is the larger part: trained alone, a client learns them by heart."""
    rng = np.random.default_rng(0)

    def client() -> tuple[Any, ...]:
        x = rng.normal(size=(75, 10)).astype(np.float32)
        y = (x[:, 0] + rng.normal(size=75)).astype(np.float32)
        return x[:25], y[:25], x[25:], y[25:]

    local = coterie.Local(epochs=2, batch=5, lr=0.1)
    result = coterie.run(
        LocalOnly(local=local), [client() for _ in range(5)], rounds=20, model="mlp", out=tmp_path / "a"
    )
    assert any("later rounds overfit" in said for said in result.warnings)
    assert any("later rounds overfit" in said for said in coterie.load(tmp_path / "a").warnings)
