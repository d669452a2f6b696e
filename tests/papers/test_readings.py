"""What is read of an outcome, how seeds are pooled, and the word that is put beside a paper's number: by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, sqrt
from typing import Any

import numpy as np
import pytest

from papers.cell import (
    Cell,
    Found,
    Outcome,
    Reading,
    Run,
    Table,
    best,
    last,
    mean_of,
    median,
    pooled,
    probed,
    rounds_to,
    variance_of,
    verdict,
)

RUN = Run("a/b", {"rounds": 4})


def outcome(curve: Mapping[str, Sequence[Any]] | None = None, probe: Mapping[str, Any] | None = None) -> Outcome:
    return Outcome("a/b", 0, "f", (), {}, "", {}, "", "", 1.0, None, curve or {}, probe or {})


ACCURACY: dict[str, list[Any]] = {"round": [5, 10, 15, 20], "accuracy": [0.5, 0.9, 0.7, 0.8]}


def cell(read: Reading, paper: float | None = 80.0, comparable: bool = True) -> Cell:
    return Cell("row", "column", RUN, read, paper, comparable=comparable)


# ------------------------------------------------------------------------------------------------- readings


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (best(), [90.0]),
        (best(scale=1.0), [0.9]),
        (median(), [75.0]),
        (last(), [80.0]),
        (last(3), [90.0, 70.0, 80.0]),
        (last(2, scale=1.0), [0.7, 0.8]),
        (last(9), [50.0, 90.0, 70.0, 80.0]),
        (mean_of("accuracy"), [0.725]),
        (variance_of("accuracy"), [0.021875]),
        (rounds_to(0.7), [10.0]),
        (rounds_to(0.9), [10.0]),
        (rounds_to(0.5), [5.0]),
        (rounds_to(0.95), []),
        (rounds_to(12, "round"), [15.0]),
    ],
)
def test_readings_by_hand(read: Reading, values: list[float]) -> None:
    assert list(read(outcome(ACCURACY))) == pytest.approx(values)


def test_rounds_without_a_number_are_passed_over() -> None:
    holes = outcome({"round": [1, 2, 3, 4], "accuracy": [None, 0.2, 0.6, None], "discrepancy": [None, 1.0, None, 3.0]})
    assert list(best()(holes)) == pytest.approx([60.0])
    assert list(median()(holes)) == pytest.approx([40.0])
    assert list(mean_of("discrepancy")(holes)) == pytest.approx([2.0])
    assert list(variance_of("discrepancy")(holes)) == pytest.approx([1.0])
    assert list(rounds_to(0.5)(holes)) == [3.0]


def test_columns() -> None:
    column = outcome({"ari": [None, 1, 0.5]}).column("ari")
    assert column.dtype == np.float64
    assert isnan(column[0])
    assert column[1:].tolist() == [1.0, 0.5]
    assert len(outcome().column("ari")) == 0


def test_what_probes_found() -> None:
    found = outcome(probe={"clusters": 0.5, "mse": [[1.0, 2.0], [3.0, 4.0]]})
    assert probed("clusters", scale=100.0)(found) == [50.0]
    assert probed("mse", 1, 0)(found) == [3.0]
    with pytest.raises(KeyError):
        probed("nothing")(found)


# --------------------------------------------------------------------------------------------------- pooling


def test_seeds_and_rounds_are_pooled_alike() -> None:
    """Two seeds of two rounds: 50, 70, 80, 100. Mean 75; population deviation sqrt((625 + 25 + 25 + 625) / 4)."""
    curves: list[dict[str, list[Any]]] = [{"round": [1, 2], "accuracy": a} for a in ([0.5, 0.7], [0.8, 1.0])]
    found = pooled(cell(last(2)), [outcome(c) for c in curves])
    assert found is not None
    assert found.mean == pytest.approx(75.0)
    assert found.std == pytest.approx(sqrt(325))
    assert found.seeds == 2


def test_one_value_has_no_deviation() -> None:
    assert pooled(cell(last(scale=1.0)), [outcome(ACCURACY)]) == Found(0.8, 0.0, 1)
    assert pooled(cell(last()), []) is None


def test_never_reached_is_no_number() -> None:
    assert pooled(cell(rounds_to(0.99)), [outcome(ACCURACY)]) is None


def test_seeds_are_those_that_gave_a_number() -> None:
    never = outcome({"round": [5, 10], "accuracy": [0.1, 0.2]})
    found = pooled(cell(rounds_to(0.9)), [outcome(ACCURACY), never])
    assert found is not None
    assert found.mean == 10.0
    assert found.seeds == 1


# -------------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("mean", "word"),
    [(80.0, "agrees"), (82.0, "agrees"), (78.0, "agrees"), (82.01, "higher"), (77.99, "lower"), (0.0, "lower")],
)
def test_verdicts(mean: float, word: str) -> None:
    assert verdict(cell(last()), Found(mean, 1.0, 3), 2.0) == word


def test_other_words() -> None:
    assert verdict(cell(last()), None, 2.0) == "not run"
    assert verdict(cell(last(), paper=None), None, 2.0) == "not run"
    assert verdict(cell(last(), paper=None), Found(1.0, 0.0, 1), 2.0) == ""
    assert verdict(cell(last(), comparable=False), Found(80.0, 0.0, 1), 2.0) == "not comparable"
    assert verdict(cell(last(), paper=4.0), Found(4.0, 0.0, 1), 0.0) == "agrees"


def test_no_number_is_not_lower() -> None:
    assert verdict(cell(last()), Found(float("nan"), 0.0, 1), 2.0) not in ("lower", "higher", "agrees")


# ---------------------------------------------------------------------------------------------------- tables


def test_a_table_runs_each_run_once() -> None:
    other = Run("a/c", {})
    cells = (
        Cell("r", "x", RUN, last(), 1.0),
        Cell("r", "y", RUN, best(), 1.0),
        Cell("s", "x", other, last(), None),
    )
    table = Table("t", "title", "paper", "protocol", cells, 1.0)
    assert table.runs() == [RUN, other]
    assert table.runs(cells[1:2]) == [RUN]
    assert [c.name for c in cells] == ["r/x", "r/y", "s/x"]
