"""The page that says which method serves which data: its words on numbers made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from papers.cell import Outcome, Run
from papers.suite.advice import KINDS, which_method
from papers.suite.cases import CASES
from papers.suite.scores import OnCase
from papers.tables import table
from papers.tables.suite import RUNS


@dataclass
class Stored:
    """Outcomes by the name of their run."""

    outcomes: Mapping[str, Sequence[Outcome]]

    def of(self, run: Run) -> list[Outcome]:
        return list(self.outcomes.get(run.name, ()))


def scored(scores: Mapping[str, float], cases: Sequence[str]) -> Stored:
    """One seed on these federations; contenders that are not named score 50."""
    made = {}
    for name, run in RUNS.items():
        _, case, contender = name.split("/")
        if case in cases:
            value = scores.get(contender, 50.0) / 100
            curve: dict[str, list[float]] = {"accuracy": [value] * 3, "clusters": [2] * 3}
            made[run.name] = [Outcome(run.name, 0, "", (), {}, "", {}, "", "", 1.0, None, curve, {})]
    return Stored(made)


def test_every_federation_is_of_one_kind() -> None:
    for half, case in CASES:
        one = OnCase(half, case, {}, ())
        assert sum(kind.holds(one) for kind in KINDS) == 1, case.name


def test_what_is_best_and_what_is_near_it_is_said() -> None:
    scores = {"halves": 90.0, "fedavg": 70.0, "ditto": 80.0, "wecfl-auto": 89.5, "wecfl-true": 91.0}
    text = which_method(scored(scores, ["digits-rotated-4", "mnist-rotated-6"]), RUNS)
    assert "its runs on 2 of 24 federations, on which every contender was run, with 1 seed." in text
    assert (
        "**halves** has the highest mean, 90.0; within a point: wecfl-auto (89.5). For comparison: fedavg 70.0" in text
    )
    assert "| wecfl-true | the truth | 91.0 | 91.0 |" in text
    assert "| fedavg |  | 70.0 | 70.0 |" in text
    assert "| wecfl | 91.0 | 89.5 |" in text
    assert text.count("Nothing was run yet.") == len(KINDS) - 1


def test_where_another_is_ahead_it_is_named() -> None:
    text = which_method(scored({"halves": 71.8, "fedavg": 64.8, "ditto": 80.6}, ["har-people"]), RUNS)
    assert "**ditto** has the highest mean, 80.6; no other is within a point." in text
    assert "For comparison: halves 71.8, fedavg 64.8, local 50.0." in text
    assert "| ditto |  | 80.6 |  |" in text  # none of them in the second half


def test_a_federation_counts_when_every_contender_was_run_on_it() -> None:
    some = scored({"halves": 90.0}, ["digits-rotated-4"])
    some.outcomes = {name: found for name, found in some.outcomes.items() if not name.endswith("/ditto")}
    text = which_method(some, RUNS)
    assert "its runs on 0 of 24 federations" in text
    assert text.count("Nothing was run yet.") == len(KINDS)


def test_both_pages_are_written() -> None:
    own = table("suite").own_page
    assert own is not None
    assert [file for file, _ in own.pages(Stored({}))] == ["suite.md", "which-method.md"]
