"""What a reader of a table sees: near misses as such, what is missing in few words, and guesses with their numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from coterie.core.errors import CoterieError
from papers import page
from papers.campaign import Job, expected, missing
from papers.cell import Cell, Checked, Claim, Found, Outcome, Run, Table, last
from papers.figures import Drawn
from papers.results import Results, fingerprint
from papers.show import in_terminal, not_run, notes, overview, to_do
from papers.standing import Line, Standing, number, standing
from papers.tables import TABLES, cam_order
from papers.tables.wecfl import CLIENTWISE, run_of, unpooled, without_clusterwise

RUN = Run("tiny/a", {"rounds": 4}, seconds=90.0)


def cell(row: str, column: str, note: str = "") -> Cell:
    return Cell(row, column, RUN, last(), None, note=note)


def table(*cells: Cell, claims: tuple[Claim, ...] = ()) -> Table:
    return Table("tiny", "Tiny", "nobody", "nothing", cells, 1.0, claims)


def partly(*begun: str) -> Standing:
    cells = [cell(row, column, f"about {row}") for row in ("a", "b", "c") for column in ("x", "y")]
    lines = [Line(c, Found(1.0, 0.0, 1) if c.name in begun else None, "") for c in cells]
    return Standing(table(*cells), tuple(lines), ())


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(0.99972, "", "0.9997"), (1.0, "", "1"), (0.9166, "", "0.917"), (0.99972, "%", "1.0"), (4 + 1e-9, "", "4")],
)
def test_nearly_a_whole_number_is_not_that_number(value: float, unit: str, shown: str) -> None:
    """An ARI of 0.99972 beside a claim of 1 that does not hold."""
    assert number(value, unit) == shown


def test_what_was_not_run_is_said_by_rows() -> None:
    assert not_run(partly("a/x", "a/y", "b/x")) == "b (y), c"
    assert notes(partly("a/x", "a/y", "b/x")) == ["a: about a", "b: about b"]


def test_a_single_seed_is_marked_in_a_terminal_too() -> None:
    assert list(in_terminal(partly("a/x")).columns[4].cells) == ["1 only", *[""] * 5]


def test_a_claim_that_cannot_be_judged_counts_as_unknown(tmp_path: Path) -> None:
    claim = Claim("it is", lambda ours: ours("a/x") > 0)
    shown = overview([standing(table(cell("a", "x"), claims=(claim,)), Results(tmp_path))])
    assert [list(column.cells) for column in shown.columns][-2:] == [[""], ["1"]]


def test_a_run_may_want_more_seeds_than_its_table(tmp_path: Path) -> None:
    more, one = Run("tiny/b", {}, seeds=3), Run("tiny/c", {})
    found = missing([more, one], range(1), Results(tmp_path), more=True)
    assert found == [Job(more, 0), Job(one, 0), Job(more, 1), Job(more, 2)]
    assert missing([more, one], range(10, 12), Results(tmp_path), more=True)[-1] == Job(more, 12)
    assert missing([more, one], range(1), Results(tmp_path)) == [Job(more, 0), Job(one, 0)]  # as many as asked for


def test_a_plan_says_how_long_each_run_takes(tmp_path: Path) -> None:
    jobs = [Job(RUN, 0), Job(RUN, 1), Job(Run("tiny/d", {}), 0)]
    expected = ["tiny/a, seeds 0, 1: 1.5 min each", "tiny/d, seed 0: time unknown"]
    assert to_do(jobs, Results(tmp_path)) == expected


# ------------------------------------------------------------------------------------------ the guess about Table 5


class Kept:
    def __init__(self, outcomes: dict[str, Outcome]) -> None:
        self.outcomes = outcomes

    def of(self, run: Run) -> list[Outcome]:
        return [self.outcomes[run.name]] if run.name in self.outcomes else []


def test_twice_the_client_wise_cell_less_the_cluster_wise_one() -> None:
    """WeCFL, 2-class: 2 * 66.80 - 72.13 = 61.47, and 2 * 45.61 - 50.65 = 40.57."""
    lines = {(line.partition, line.k, line.method): line for line in CLIENTWISE if line.data == "cifar"}
    found = without_clusterwise(lines["2-class", 10, "wecfl"])
    assert found is not None
    assert found["accuracy"] == pytest.approx((66.8, 61.47))
    assert found["macro_f1"] == pytest.approx((45.61, 40.57))


def test_the_guess_is_shown_with_what_speaks_for_it() -> None:
    """60 is 6.8 from the printed 66.8 and 1.47 from 61.47; 45 is 0.61 and 4.43 away: one of two, 2.95 against 3.7."""
    run = run_of("cifar", "2-class", 10, "wecfl").name
    curve = {"accuracy": [0.6] * 3, "macro_f1": [0.45] * 3}
    said = unpooled(Kept({run: Outcome(run, 0, "", (), {}, "", {}, "", "", 1.0, None, curve, {})}), "cifar")
    assert "| 2-class K=10 wecfl/accuracy | 66.8 | 61.5 | 60.0 |" in said
    assert "nearer to ours in 1 of 2 cells, and on average 2.9 points away" in said[-1]
    assert "where the printed cells are 3.7 away" in said[-1]
    assert unpooled(Kept({}), "cifar") == []


def test_only_the_order_differs() -> None:
    configs = [dict(cam_order.run_of(order).config) for order in cam_order.ORDERS]
    orders = [config.pop("method") for config in configs]
    assert configs[0] == configs[1] == configs[2]
    assert [method.pop("order") for method in orders] == list(cam_order.ORDERS)
    assert orders[0] == orders[1] == orders[2]


def test_without_a_browser_the_pictures_of_before_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_browser(*_: object) -> None:
        raise CoterieError("no browser was found", code="report-browser")

    monkeypatch.setattr(page, "draw_figures", no_browser)
    (tmp_path / "old.png").write_bytes(b"drawn before")
    figures = [Drawn(name, name.title(), "what it shows", None) for name in ("old", "new")]
    assert page._pictures(figures, tmp_path) == [("Old", "what it shows", tmp_path / "old.png")]
    assert "no browser was found" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------- the summary


def test_a_line_says_how_far_agreement_goes() -> None:
    claims = tuple(Claim(text, lambda _: True) for text in ("one", "two"))
    one = Cell("a", "x", RUN, last(), 1.0)
    checked = (Checked("one", True, ""), Checked("two", None, ""))
    agreeing, missed = (Line(one, Found(1.0, 0.0, 1), word) for word in ("agrees", "higher"))
    assert Standing(table(one, claims=claims), (agreeing,), checked).in_a_line == "agrees as far as it was run"
    assert Standing(table(one, claims=claims), (missed,), checked).in_a_line == "not known yet: two"


def test_a_line_names_the_papers_own_methods_that_nothing_was_run_of() -> None:
    """Baselines that are shared with another table do not stand for them, nor does the authors' variant."""
    cells = [Cell(f"(3, 2) K=10 {name}", "x", RUN, last(), 1.0) for name in ("ifca", "a-cam", "b-cam-authors", "b-cam")]
    one = dataclasses.replace(table(*cells), own=("a-cam", "b-cam"), why="because")
    lines = [Line(c, Found(1.0, 0.0, 1), "agrees") for c in cells]
    assert Standing(one, (lines[0], lines[2]), ()).in_a_line == "not run yet: a-cam, b-cam; because"
    assert Standing(one, tuple(lines[:3]), ()).in_a_line == "not run yet: b-cam; because"
    assert Standing(one, tuple(lines), ()).in_a_line == "because"


def test_what_cannot_be_compared_is_not_said_to_be_unprinted() -> None:
    def agreed(paper: float | None, run: bool, comparable: bool = True) -> str:
        one = Cell("a", "x", RUN, last(), paper, comparable=comparable)
        return Standing(table(one), (Line(one, Found(1.0, 0.0, 1) if run else None, "agrees"),), ()).agreed

    assert agreed(None, True) == "no numbers printed"
    assert agreed(1.0, True) == "1 of 1"
    assert agreed(1.0, True, comparable=False) == "not comparable"
    assert agreed(1.0, False) == "none run"


def test_reasons_do_not_say_what_was_run() -> None:
    """What was run is counted beside them, and changes with every run."""
    said = [t.why for t in TABLES if any(word in t.why for word in ("declared", "not run", "was run", "were run"))]
    assert said == []


def test_rows_of_stocfl_table_1_are_all_there() -> None:
    """The paper's seven, at 10 % of the clients, on MNIST and CIFAR-10."""
    rows = {"fedavg", "fedprox", "ditto", "ifca-2", "ifca-4", "ifca-6", "stocfl"}
    tables = {t.name: t for t in TABLES}
    for name, columns in (("stocfl-table1", 3), ("stocfl-table1-cifar", 1)):
        printed = {c.name for c in tables[name].cells if c.row in rows and c.paper is not None}
        assert len(printed) == columns * len(rows), name


# ---------------------------------------------------------------------------------------------- how long a run takes

MEASURED = Run("tiny/measured", {"data": {"name": "digits"}, "rounds": 4, "engine": {"name": "batched"}}, seconds=90.0)


def stored(results: Results, seed: int, seconds: float, processor: float | None, engine: str = "batched") -> None:
    config = {"engine": {"name": engine}}
    mark = fingerprint(MEASURED)
    results.save(Outcome(MEASURED.name, seed, mark, (0,), config, "", {}, "", "", seconds, None, {}, {}, processor))


def test_the_time_that_passed_counts_where_it_is_less_than_the_estimate(tmp_path: Path) -> None:
    """Beside other work, or before code was compiled, a run took longer than it would now."""
    results = Results(tmp_path)
    assert expected(MEASURED, results) == 90.0
    stored(results, 0, 400.0, None)
    assert expected(MEASURED, results) == 90.0
    stored(results, 1, 20.0, None)
    stored(results, 0, 40.0, None)
    assert expected(MEASURED, results) == 30.0
    assert expected(dataclasses.replace(MEASURED, seconds=None), results) == 30.0


def test_processor_time_counts_more_than_the_estimate(tmp_path: Path) -> None:
    results = Results(tmp_path)
    stored(results, 0, 400.0, 150.0)
    stored(results, 1, 10.0, None)
    assert expected(MEASURED, results) == 150.0


def test_another_engines_time_does_not_count(tmp_path: Path) -> None:
    results = Results(tmp_path)
    stored(results, 0, 10.0, 10.0, "sequential")
    assert expected(MEASURED, results) == 90.0
    assert expected(dataclasses.replace(MEASURED, seconds=None), results) is None
