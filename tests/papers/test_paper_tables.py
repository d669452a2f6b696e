"""Every table: names that mean one thing, configurations that are valid, claims that can be checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from conftest import raises
from coterie.training.build import build_method
from papers.cell import Cell, Claim, Found, Outcome, Run, Table, verdict
from papers.results import configured, fingerprint
from papers.tables import TABLES, fedsoft, table
from papers.work import find, running

RUNS = {run.name: run for t in TABLES for run in t.runs()}
CLAIMS = [(t, claim) for t in TABLES for claim in t.claims]


each = pytest.mark.parametrize("one", TABLES, ids=lambda t: t.name)


def test_names_are_unique() -> None:
    names = [t.name for t in TABLES]
    assert len(set(names)) == len(names)
    for name in names:
        assert table(name).name == name
    with raises("reproduce-unknown", match=r"no table 'quik'.*quick"):
        table("quik")


@each
def test_cells_have_names_of_their_own(one: Table) -> None:
    names = [cell.name for cell in one.cells]
    assert len(set(names)) == len(names)
    claims = [claim.text for claim in one.claims]
    assert len(set(claims)) == len(claims)


@each
def test_it_says_what_it_is(one: Table) -> None:
    assert one.title
    assert one.paper
    assert len(one.protocol) > 40
    assert one.seeds >= 1
    assert one.tolerance >= 0
    assert one.cells


def test_a_run_is_one_configuration() -> None:
    """Tables share runs by name: the same name with another configuration, or probe, would be another outcome."""
    seen: dict[str, str] = {}
    for t in TABLES:
        for cell in t.cells:
            text = json.dumps([cell.run.config, cell.run.probe], sort_keys=True)
            assert seen.setdefault(cell.run.name, text) == text, cell.run.name


def test_runs_lie_in_places_of_their_own(tmp_path: Any) -> None:
    assert len({running(tmp_path, run, 0) for run in RUNS.values()}) == len(RUNS)
    for name in RUNS:
        assert not name.startswith((".", "/"))
        assert ".." not in name


@pytest.mark.parametrize("name", RUNS)
def test_configurations_are_valid(name: str) -> None:
    run = RUNS[name]
    config = configured(run, 1)
    assert config.seed == 1
    assert build_method(config) is not None
    assert "seed" not in run.config
    assert len(fingerprint(run)) == 16
    assert find(name) is run


def test_different_runs_have_different_fingerprints() -> None:
    """Two names for one configuration would be computed twice."""
    by_print: dict[str, list[str]] = {}
    for name, run in RUNS.items():
        by_print.setdefault(fingerprint(run), []).append(name)
    assert [names for names in by_print.values() if len(names) > 1] == []


PRINTED = tuple(t for t in TABLES if any(cell.paper is not None for cell in t.cells))


def test_the_papers_tables_have_the_papers_numbers() -> None:
    """Figures print none; every table does, in all its cells but those that say what they are instead."""
    assert {t.name for t in TABLES if "-table" in t.name} <= {t.name for t in PRINTED}
    for one in PRINTED:
        silent = {cell.name for cell in one.cells if cell.paper is None and not cell.note}
        assert silent <= {f"{skew}/ARI" for skew in ("pathological", "rotated", "shifted", "hybrid")}, one.name


@each
def test_every_claim_says_where_it_stands(one: Table) -> None:
    """Which section, table or figure of the paper, or that it is not the paper's."""
    assert [claim.text for claim in one.claims if not claim.place] == []


@each
def test_accuracies_are_per_cent(one: Table) -> None:
    if one.unit == "%":
        assert all(1 < cell.paper <= 100 for cell in one.cells if cell.paper is not None)


def test_tolerances_are_of_the_size_of_what_they_judge() -> None:
    """Columns of several units cannot share a tolerance: one that is larger than all they print lets anything agree."""
    for one in PRINTED:
        columns: dict[str, list[Cell]] = {}
        for cell in one.cells:
            columns.setdefault(cell.column, []).append(cell)
        for cells in columns.values():
            largest = max((cell for cell in cells if cell.paper is not None), key=lambda c: c.paper or 0, default=None)
            if largest is not None:
                assert verdict(largest, Found(0.0, 0.0, 1), one.tolerance) != "agrees", f"{one.name}: {largest.name}"


# --------------------------------------------------------------------------------------------------------- claims


def numbers(one: Table, value: Callable[[Cell], float]) -> tuple[Callable[[str], float], set[str]]:
    """Our numbers by cell, and which of them were looked at."""
    known, asked = {cell.name: value(cell) for cell in one.cells}, set[str]()

    def ours(name: str) -> float:
        asked.add(name)
        return known[name]

    return ours, asked


@pytest.mark.parametrize(("one", "claim"), CLAIMS, ids=lambda x: x.text if isinstance(x, Claim) else x.name)
def test_claims_can_be_checked(one: Table, claim: Claim) -> None:
    for value in (0.0, 1.0, 50.0):
        ours, asked = numbers(one, lambda cell, value=value: value)  # type: ignore[misc]
        assert type(claim.holds(ours)) is bool
        assert asked


@pytest.mark.parametrize(("one", "claim"), CLAIMS, ids=lambda x: x.text if isinstance(x, Claim) else x.name)
def test_claims_can_fail(one: Table, claim: Claim) -> None:
    """On numbers that are all the same (none, or large), that rise from cell to cell, or that fall."""
    places = {cell.name: i for i, cell in enumerate(one.cells)}
    shapes = ((0.0, 0), (7.0, 0), (500.0, 3), (500.0, -3))  # where it begins, and how it goes on
    tries = [numbers(one, lambda cell, a=a, b=b: a + b * places[cell.name])[0] for a, b in shapes]  # type: ignore[misc]
    assert not all(claim.holds(ours) for ours in tries)


class NotPrintedError(Exception):
    pass


@pytest.mark.parametrize(("one", "claim"), CLAIMS, ids=lambda x: x.text if isinstance(x, Claim) else x.name)
def test_what_a_paper_claims_holds_of_its_own_numbers(one: Table, claim: Claim) -> None:
    """Where all that it is about is printed, a claim that is false of it is not the paper's."""
    printed = {cell.name: cell.paper for cell in one.cells}

    def theirs(name: str) -> float:
        value = printed[name]
        if value is None:
            raise NotPrintedError
        return value

    with suppress(NotPrintedError):  # then there is nothing to say
        assert claim.holds(theirs)


# ------------------------------------------------------------------------------------------------ FedSoft's centers


def outcome(mse: list[list[float]]) -> Outcome:
    return Outcome("r", 0, "f", (), {}, "", {}, "", "", 1.0, None, {}, {"mse": mse})


def test_centers_are_numbered_by_what_they_are_good_at() -> None:
    """Center 1 is the better one on theta 0 and center 0 on theta 1: they change places."""
    crossed = outcome([[9.0, 1.0], [2.0, 8.0]])
    straight = outcome([[1.0, 9.0], [8.0, 2.0]])
    for theta, center, error in ((0, 0, 1.0), (0, 1, 9.0), (1, 0, 8.0), (1, 1, 2.0)):
        assert list(fedsoft._error(theta, center)(crossed)) == [error]
        assert list(fedsoft._error(theta, center)(straight)) == [error]


def test_centers_are_matched_on_the_whole() -> None:
    """Center 0 is the better one on both; the sum decides: 1 + 5 against 4 + 3."""
    found = outcome([[1.0, 4.0], [3.0, 5.0]])
    assert [list(fedsoft._error(t, c)(found)) for t in range(2) for c in range(2)] == [[1.0], [4.0], [3.0], [5.0]]
    other = outcome([[1.0, 4.0], [3.0, 9.0]])  # 1 + 9 against 4 + 3
    assert [list(fedsoft._error(t, c)(other)) for t in range(2) for c in range(2)] == [[4.0], [1.0], [9.0], [3.0]]


def test_the_papers_centers_are_numbered_alike() -> None:
    cells = {cell.name: cell.paper for cell in table("fedsoft-table1").cells}
    for name in fedsoft.PRINTED:
        own = (cells[f"theta0/{name} c0"] or 0) + (cells[f"theta1/{name} c1"] or 0)
        crossed = (cells[f"theta0/{name} c1"] or 0) + (cells[f"theta1/{name} c0"] or 0)
        assert own < crossed
    assert cells["theta0/10:90 c0"] == 29.5
    assert cells["theta1/10:90 c1"] == 21.8
    assert cells["theta0/linear c0"] == 38.2


def test_spread_of_a_row() -> None:
    assert list(fedsoft._spread(1)(outcome([[1.0, 1.0], [2.0, 5.0]]))) == [2.5]


def test_no_such_run() -> None:
    with raises("reproduce-unknown", match=r"no run 'quick/rotated/fedavgg'.*quick/rotated/fedavg"):
        find("quick/rotated/fedavgg")
    assert isinstance(find("quick/rotated/fedavg"), Run)
