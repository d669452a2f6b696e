"""The numbers of the table `drift`, from curves written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from coterie.training.build import build
from coterie.training.config import RunConfig, read
from coterie.training.drift_scores import changes_in
from papers.cell import Outcome, Run
from papers.tables.drift import DATA, KINDS, METHODS, ROUNDS, TABLES, after, rounds_to_find

(TABLE,) = TABLES


def outcome(accuracy: float = 0.0, ari: dict[int, float] | None = None, seed: int = 0) -> Outcome:
    """A curve of 30 rounds: this accuracy from round 13 on, 0.99 before; an ARI of 1 but in these rounds."""
    rounds = list(range(1, ROUNDS + 1))
    curve: dict[str, Sequence[Any]] = {
        "round": rounds,
        "accuracy": [0.99 if r < 13 else accuracy for r in rounds],
        "ari": [(ari or {}).get(r, 1.0) for r in rounds],
    }
    return Outcome("r", seed, "", (), {}, "", {}, "", "", 1.0, None, curve, {})


def test_accuracy_is_the_mean_from_the_first_change_on() -> None:
    assert after(outcome(0.5)) == [pytest.approx(50.0)]
    made = outcome(0.5)
    made.curve["accuracy"][-1] = 0.86  # type: ignore[index]  # one of 18 rounds
    assert after(made) == [pytest.approx(52.0)]


def test_rounds_until_the_clusters_are_found_again() -> None:
    lost = {12: 0.1, 13: 0.5, 14: 0.89, 18: 0.0, 19: 0.0, 20: 0.0, 21: 0.0, 22: 0.0}
    assert rounds_to_find("staggered")(outcome(ari=lost)) == [2, 5, 0]  # 5: not before the change in round 23
    assert rounds_to_find("sudden")(outcome(ari=lost)) == [2]
    assert rounds_to_find("sudden")(outcome(ari=dict.fromkeys(range(13, ROUNDS + 1), 0.3))) == [18]


@dataclass
class Written:
    """Outcomes that were never run."""

    accuracy: dict[str, list[float]] = field(default_factory=dict)

    def of(self, run: Run) -> list[Outcome]:
        return [outcome(value, seed=seed) for seed, value in enumerate(self.accuracy.get(run.name, []))]


def test_points_below_the_oracle() -> None:
    assert TABLE.more is not None
    found = TABLE.more(
        Written({"drift/digits/sudden/oracle": [0.9, 0.92], "drift/digits/sudden/halves": [0.88, 0.9, 0.92]})
    )
    names = [cell.strip() for cell in found[2].split("|")]
    row = [cell.strip() for cell in found[-1].split("|")]
    assert row[names.index("halves")] == "1.0"  # 91 - 90
    assert row[names.index("ifca")] == ""
    assert row[1] == "digits, sudden"
    assert TABLE.more(Written()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_changes_come_in_the_rounds_that_are_read(kind: str) -> None:
    run = next(cell.run for cell in TABLE.cells if cell.run.name == f"drift/digits/{kind}/fedavg")
    assert changes_in(build(read(None, base=RunConfig().dump() | run.config)).federation) == KINDS[kind]


def test_every_cell_of_the_issue_is_there() -> None:
    """Four kinds, two data sets, seven methods and the oracle; what is read of FedAvg is its accuracy alone."""
    runs: Any = {cell.run.name for cell in TABLE.cells}
    assert runs == {f"drift/{d}/{k}/{m}" for d in DATA for k in KINDS for m in METHODS}
    assert len(TABLE.cells) == len(DATA) * len(KINDS) * (2 * len(METHODS) - 1)
    assert np.all([cell.paper is None for cell in TABLE.cells])
