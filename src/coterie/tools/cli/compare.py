"""`coterie compare`: a grid of configurations with several seeds, a few processes at a time, and how they compare."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError
from coterie.core.text import decimals, fixed, listing
from coterie.tools.cli.options import AsJson, Trust
from coterie.tools.experiments import runner

BESIDE = 60  # columns of a terminal that a bar takes up, without the names of runs

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from coterie.tools.experiments.grid import Cell, Grid, Outcome, Planned
    from coterie.tools.report.ranking import Spread


GridWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE.yaml] [key=value,value ...]",
        help="A file, then changes to it; every combination of the values is run. seeds=3 is seed=0,1,2.",
    ),
]
GridOut = Annotated[
    Path | None,
    typer.Option(help="Where the runs go; a directory of an earlier call goes on. runs/compare-N when not given."),
]


def compare(
    words: GridWords = None,
    out: GridOut = None,
    trust: Trust = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time, one thread each; as many as cores.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run several methods (or any other keys) with several seeds and compare them.

    Example: coterie compare method=fedavg,ifca,wecfl method.k=4 seeds=3 --jobs 2
    """
    from rich.console import Console

    from coterie.core.compute import cores
    from coterie.core.registry import Consent
    from coterie.tools.experiments.grid import plan, state_of
    from coterie.training.config import split_words
    from coterie.training.run_directory import free_directory

    stderr = Console(stderr=True, quiet=as_json)
    grid = plan(*split_words(words or []), Consent(frozenset(trust or ())))
    place = out or free_directory("compare")
    states = {run: state_of(run, place) for run in grid.runs}
    for note in grid.notes:
        _say(stderr, note)
    many = {state: list(states.values()).count(state) for state in ("finished", "begun", "new")}
    done = f"{many['finished']} finished already, {many['begun']} to go on with, {many['new']} to start"
    _say(stderr, f"{len(states)} runs in {place}: {done}")
    _fetch(grid, stderr)
    todo = [run for run in grid.runs if states[run] != "finished"]
    try:
        failed = _carry_out(todo, place, jobs or cores(), stderr)
    except KeyboardInterrupt:
        again = shlex.join(["coterie", "compare", *(words or []), "--out", str(place)])
        sys.stderr.write(f"interrupted; go on with: {again}\n")
        _note_interrupted(todo, place)
        raise typer.Exit(130) from None
    _note_failures(failed, place)
    rows = _compared(grid, place, failed)
    report = _report(grid, place, stderr)
    if as_json:
        sys.stdout.write(json.dumps(_document(place, report, rows, failed), indent=2) + "\n")
    else:
        _show(rows, place, report)
    for one in failed:
        sys.stderr.write(f"failed: {one.job.path(place)}: {one.why}\n")
    if failed:
        raise typer.Exit(1)


def _show(rows: Sequence[Compared], place: Path, report: Path | None) -> None:
    """The table, the warnings of each run, and where everything is."""
    from rich.console import Console

    from coterie.tools.cli import console

    stdout = Console()
    if any(row.outcomes for row in rows):
        stdout.print(Comparison(rows))
    for row in rows:
        for ended in row.outcomes:
            console.warned(ended.warnings, stdout, f"{row.name}, seed {ended.seed}")
    _say(stdout, f"runs: {place}" if report is None else f"runs: {place}\nreport: {report}")


# ------------------------------------------------------------------------------------------------- processes


@dataclass(frozen=True)
class Progress:
    """How far all runs are."""

    done: int
    total: int
    rounds: int  # done, of those that ended and those under way
    ended: tuple[str, ...]  # since the last look, in words
    at: tuple[str, ...]  # what is under way


def carry_out(
    runs: Sequence[Planned], out: Path, at_once: int, tell: Callable[[Progress], None] = lambda _: None
) -> list[runner.Failed[Planned]]:
    """Runs a few at a time, each in one of as many processes; one that fails does not stop the others."""
    behind = 0

    def look(so_far: runner.Look[Planned]) -> None:
        nonlocal behind
        behind += sum(run.config.rounds for run, _ in so_far.ended)
        rounds = behind + sum(_rounds(run, out) for run in so_far.at)
        ended = tuple(f"{_title(run)}: {'failed' if why else 'done'}" for run, why in so_far.ended)
        tell(Progress(so_far.done, len(runs), rounds, ended, tuple(_title(run) for run in so_far.at)))

    return runner.carry_out(runs, lambda run: _request(run, out), at_once, look)


def _request(run: Planned, out: Path) -> runner.Request:
    from coterie.training.trust import named_code

    tree = run.config.dump()
    trust = [name for _, name in named_code(tree)]  # what this command was told to run, it may go on with
    beside = run.config.consent.beside
    return {
        "kind": "run",
        "path": str(run.path(out)),
        "tree": tree,
        "trust": trust,
        "beside": None if beside is None else str(beside),
    }


def _rounds(run: Planned, out: Path) -> int:
    log = run.path(out) / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.is_file() else 0


def _title(run: Planned) -> str:
    return f"{run.cell.title} seed {run.seed}"


def _carry_out(runs: Sequence[Planned], out: Path, at_once: int, stderr: Console) -> list[runner.Failed[Planned]]:
    from filelock import FileLock, Timeout

    if not runs:
        return []
    out.mkdir(parents=True, exist_ok=True)
    already = sum(_rounds(run, out) for run in runs)
    try:
        with (
            FileLock(out / ".lock", timeout=0),
            _bar(stderr, sum(run.config.rounds for run in runs), already) as tell,
        ):
            return carry_out(runs, out, at_once, tell)
    except Timeout:
        raise CoterieError(f"{out}: another comparison is at work there", code="run-locked") from None


@contextmanager
def _bar(stderr: Console, rounds: int, already: int) -> Iterator[Callable[[Progress], None]]:
    """A bar over all rounds of all runs, with their rate and the time left; a line per run that has ended."""
    from coterie.tools.cli.console import Pace, bars

    pace = Pace(rounds, already)
    with bars(stderr, transient=True) as bar:
        task = bar.begin("compare", rounds, already)

        def tell(now: Progress) -> None:
            pace.reach(now.rounds)
            at = ", ".join(now.at[:3]) + (" ..." if len(now.at) > 3 else "")
            at = shorten(at, max(12, stderr.width - BESIDE), placeholder=" ...")
            bar.update(task, completed=now.rounds, score=f"{now.done}/{now.total} runs", clusters=at, pace=str(pace))
            for line in now.ended:
                _say(stderr, f"{line} ({now.done}/{now.total}, {pace})")

        yield tell


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False, emoji=False)


def _fetch(grid: Grid, stderr: Console) -> None:
    """What the runs need is fetched once and before them, where a bar can show it."""
    from functools import partial

    from coterie.data.download import fetch_for
    from coterie.tools.cli.data import progress

    for config in {repr(run.config.data): run.config for run in grid.runs}.values():
        fetch_for(config.data, partial(progress, stderr))


def _compared(grid: Grid, out: Path, failed: Sequence[runner.Failed[Planned]]) -> list[Compared]:
    from coterie.tools.experiments.grid import alone_of, outcome_of

    lost = {one.job for one in failed}
    ended = [run for run in grid.runs if run not in lost]
    alone = {run: alone_of(run, ended) for run in ended}
    cells: dict[Cell, list[Planned]] = {}
    for run in grid.runs:
        cells.setdefault(run.cell, []).append(run)
    return [
        Compared(cell.title, len(runs), tuple(outcome_of(run, out, alone[run]) for run in runs if run not in lost))
        for cell, runs in cells.items()
    ]


def _note_failures(failed: Sequence[runner.Failed[Planned]], out: Path) -> None:
    """Each run's directory says that it failed and why, also where the run ended before it had one."""
    import yaml

    from coterie.training import status

    for one in failed:
        path = one.job.path(out)
        path.mkdir(parents=True, exist_ok=True)
        if not (path / "config.yaml").is_file():
            (path / "config.yaml").write_text(yaml.safe_dump(one.job.tree, sort_keys=False), encoding="utf-8")
        if not status.held(path):  # a run that another process is at work on is not ours to judge
            status.write(path, "failed", one.why)


def _note_interrupted(runs: Sequence[Planned], out: Path) -> None:
    """Runs that were under way have been ended with this process: stopped, not failed."""
    from coterie.training import status

    for run in runs:
        if status.left_running(run.path(out)):
            status.write(run.path(out), "stopped", "interrupted")


def _report(grid: Grid, out: Path, stderr: Console) -> Path | None:
    """One page about all runs, those that failed too; None, and a word about it, where it cannot be made."""
    cells: dict[Cell, list[Path]] = {}
    for run in grid.runs:
        cells.setdefault(run.cell, []).append(run.path(out))
    file = out / "report.html"
    try:
        from coterie.tools.cli.report import write_page
        from coterie.tools.report.page import render
        from coterie.tools.report.record import read_run

        write_page(file, render([read_run(path) for paths in cells.values() for path in paths]))
    except (CoterieError, ImportError) as error:
        _say(stderr, f"no report: {error}")
        return None
    return file


def _document(
    out: Path, report: Path | None, rows: Sequence[Compared], failed: Sequence[runner.Failed[Planned]]
) -> dict[str, Any]:
    from coterie.tools.cli import console

    conclusion = Conclusion.of(rows)
    return {
        "out": str(out),
        "report": None if report is None else str(report),
        "conclusion": conclusion.words,
        "cells": [
            {
                "name": row.name,
                "as_good_as_the_best": i == conclusion.best or i in conclusion.as_good,
                "mean": {key: spread.mean for key, spread in spreads(row).items()},
                "std": {key: spread.std for key, spread in spreads(row).items()},
                "runs": [
                    {"seed": one.seed, "run_dir": str(one.path)}
                    | console.as_json(one.summary)
                    | ({} if one.against is None else {"against_local": dataclasses.asdict(one.against)})
                    | {"seconds": round(one.seconds, 3)}
                    | ({"warnings": list(one.warnings)} if one.warnings else {})
                    for one in row.outcomes
                ],
            }
            for i, row in enumerate(rows)
        ],
        "failed": [{"run_dir": str(one.job.path(out)), "why": one.why} for one in failed],
    }


# ------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Compared:
    """A row of a comparison: what was run, with how many seeds, and what those that ended found."""

    name: str
    seeds: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True)
class Column:
    """A column of a comparison."""

    key: str
    title: str
    factor: int = 1
    better: Callable[[Sequence[float]], float] | None = None  # max or min, where one end is better
    digits: int | None = None  # decimals; None: as many as tell the values of the column apart


ALONE = ("gain", "worse")  # columns that need a run of the method `local`
EXPLAINED = "gain, worse: over clients alone (the method local), and the share of clients that fare worse than alone"
HINT = "gain, worse: against clients alone; needs a run of the method local with the same settings: method=...,local"
COLUMNS = (
    Column("loss", "loss", better=min),
    Column("r2", "R2", better=max),
    Column("accuracy", "accuracy %", 100, max, 1),
    Column("macro_f1", "macro-F1 %", 100, max, 1),
    Column("worst_decile", "worst 10 %", 100, max, 1),
    Column("gain", "gain", 100, max, 1),
    Column("worse", "worse %", 100, min, 1),
    Column("clusters", "clusters", digits=1),
    Column("ari", "ARI", better=max, digits=2),
    Column("nmi", "NMI", better=max, digits=2),
    Column("seconds", "seconds", digits=1),
)
OF_LOSSES = {  # the same where clients are scored by their loss
    "worst_decile": Column("worst_decile", "worst 10 %", better=min),
    "gain": Column("gain", "gain", better=max),
}
EXACT = ("clusters", "ari", "nmi")  # a deviation of 0 is not shown
BARE = ("seconds",)  # nor any of these


def spreads(row: Compared) -> dict[str, Spread]:
    """Each number's mean and deviation over the seeds; a number that some seed does not have is left out."""
    from coterie.tools.report.ranking import spread

    found = {}
    for key in (*(column.key for column in COLUMNS), "constant"):
        values = [_value(key, one) for one in row.outcomes]
        known = [value for value in values if value is not None and math.isfinite(value)]
        if len(known) == len(values) and (whole := spread(known)) is not None:
            found[key] = whole
    return found


def _value(key: str, one: Outcome) -> float | None:
    """A number of a finished run."""
    if key == "seconds":
        return one.seconds
    value: float | None = getattr(one.against, key, None) if key in ALONE else getattr(one.summary, key)
    return value


@dataclass(frozen=True)
class Conclusion:
    """What a comparison comes to: in words, and which rows are as good as the best as far as can be told."""

    words: str
    best: int | None
    as_good: frozenset[int]

    @staticmethod
    def of(rows: Sequence[Compared]) -> Conclusion:
        """By accuracy where every row has one, else by loss."""
        from coterie.tools.report.ranking import ENOUGH, against_best

        numbers = [spreads(row) for row in rows]
        ended = [i for i, row in enumerate(rows) if row.outcomes]
        higher = all("accuracy" in numbers[i] for i in ended)
        key = "accuracy" if higher else "loss"
        scores = [
            {one.seed: getattr(one.summary, key) for one in row.outcomes} if key in found else {}
            for row, found in zip(rows, numbers, strict=True)
        ]
        found = against_best(scores, higher)
        if len(found.order) < 2:
            return Conclusion("", None, frozenset())
        best, *others = found.order
        means = {i: numbers[i][key].mean for i in found.order}

        def apart(i: int) -> str:
            if means[i] == means[best]:
                return f"{rows[i].name} is equal to it"
            if higher:
                return f"{rows[i].name} is {100 * (means[best] - means[i]):.1f} points worse"
            share = (means[i] - means[best]) / abs(means[best]) if means[best] else math.inf
            if share >= 10:
                return f"the loss of {rows[i].name} is {means[i]:.3g} and not {means[best]:.3g}"
            return f"the loss of {rows[i].name} is {fixed(100 * share, 0 if share > 0.05 else 1)} % higher"

        name = rows[best].name
        if all(found.tests[i][1] == "too few seeds" for i in others):
            told = [apart(i) for i in others[:3]] + (["..."] if len(others) > 3 else [])
            few = f"whether that is more than noise takes {ENOUGH} seeds or more (seeds={ENOUGH})"
            return Conclusion(f"{name} is best by {key}; {', '.join(told)}; {few}.", best, frozenset())
        close = [i for i in others if found.as_good(i)]
        worse = [i for i in others if i not in close and found.tests[i][1] != "too few seeds"]
        untold = [i for i in others if i not in close and i not in worse]
        said = [f"{name} is best by {key}"]
        if close:
            said = [f"{listing([rows[i].name for i in (best, *close)])} are within noise of each other"]
        said += [apart(i) + _p(found.corrected.get(i)) for i in worse]
        if untold:
            said.append(f"too few seeds to judge {listing([rows[i].name for i in untold])}")
        return Conclusion("; ".join(said) + ".", best, frozenset(close))


def _p(p: float | None) -> str:
    return "" if p is None else f" (p {'< 0.001' if p < 0.001 else f'= {p:.2g}'})"


@dataclass(frozen=True)
class Comparison:
    """A table of what was compared. Columns for which a terminal has no room follow in further tables."""

    rows: Sequence[Compared]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As wide as it may be."""
        from rich.markup import escape
        from rich.text import Text

        from coterie.tools.cli.console import stacked

        numbers = [spreads(row) for row in self.rows]
        end = Conclusion.of(self.rows)
        classes = any("accuracy" in found for found in numbers)
        hidden = ("loss", "r2") if classes else ("accuracy", "macro_f1")
        columns = [column if classes else OF_LOSSES.get(column.key, column) for column in COLUMNS]
        shown = [
            (column.title, _texts(column, numbers))
            for column in columns
            if column.key not in hidden and any(column.key in found for found in numbers)
        ]
        if any(len(row.outcomes) < row.seeds for row in self.rows):
            shown.append(("seeds", [f"{len(row.outcomes)} of {row.seeds}" for row in self.rows]))
        names = [escape(row.name) + (" ≈" if i in end.as_good else "") for i, row in enumerate(self.rows)]
        yield from stacked("run", names, shown, options.max_width)
        constant = next((found["constant"].mean for found in numbers if "constant" in found), None)
        if constant is not None and not classes:
            yield Text(f" loss of a constant prediction: {constant:.4g}", style="dim")
        known = any(key in found for found in numbers for key in ALONE)
        yield Text(f" {EXPLAINED if known else HINT}", style="dim")
        if end.as_good:
            yield Text(" ≈ within noise of the best", style="dim")
        if end.words:
            yield Text(end.words)


def _texts(column: Column, numbers: Sequence[Mapping[str, Spread]]) -> list[str]:
    spread = [found.get(column.key) for found in numbers]
    digits = column.digits
    if digits is None:
        values = [column.factor * one.mean for one in spread if one is not None]
        digits = decimals([1 - value for value in values], 2) if column.key == "r2" else decimals(values)
    means = ["-" if one is None else fixed(column.factor * one.mean, digits) for one in spread]
    known = [one.mean for one in spread if one is not None]
    best = fixed(column.factor * column.better(known), digits) if column.better and len(known) > 1 else None
    cells = []
    for mean, one in zip(means, spread, strict=True):
        text = mean
        if one is not None and column.key == "clusters" and not one.std:
            text = f"{one.mean:g}"
        elif one is not None and one.std is not None and column.key not in (EXACT if not one.std else BARE):
            text = f"{mean} ± {fixed(column.factor * one.std, digits)}"
        cells.append(f"[bold]{text}[/]" if mean == best else text)
    return cells
