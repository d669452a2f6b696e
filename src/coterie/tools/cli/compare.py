"""`coterie compare`: a grid of configurations with several seeds, a few processes at a time, and how they compare."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core import processes
from coterie.core.errors import CoterieError
from coterie.tools.cli.options import AsJson, Trust
from coterie.training.trust import named_code

BESIDE = 60  # columns of a terminal that a bar takes up, without the names of runs

if TYPE_CHECKING:
    from rich.console import Console

    from coterie.tools.cli.comparison import Compared
    from coterie.tools.experiments.grid import Cell, Grid, Planned


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

    from coterie.core.hardware import cores
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
    from coterie.tools.cli.comparison import comparison

    stdout = Console()
    if any(row.outcomes for row in rows):
        stdout.print(comparison(rows))
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
) -> list[processes.Failed[Planned]]:
    """Each run in a process of its own; one that fails does not stop the others."""
    behind = 0

    def look(so_far: processes.Look[Planned]) -> None:
        nonlocal behind
        behind += sum(run.config.rounds for run, _ in so_far.ended)
        rounds = behind + sum(_rounds(run, out) for run in so_far.at)
        ended = tuple(f"{_title(run)}: {'failed' if why else 'done'}" for run, why in so_far.ended)
        tell(Progress(so_far.done, len(runs), rounds, ended, tuple(_title(run) for run in so_far.at)))

    with tempfile.TemporaryDirectory() as asked:
        return processes.carry_out(
            runs, lambda run: processes.start(run, _command(run, out, Path(asked)), at_once), at_once, look
        )


def _command(run: Planned, out: Path, asked: Path) -> list[str]:
    import yaml

    path = run.path(out)
    words = ["--resume", str(path)]
    if not (path / "config.yaml").is_file():
        file = asked / f"{len(list(asked.iterdir()))}.yaml"
        file.write_text(yaml.safe_dump(run.config.dump(), sort_keys=False), encoding="utf-8")
        words = [str(file), "--out", str(path)]
    for _, name in named_code(run.config.dump()):  # what this command was told to run, it may go on with
        words += ["--trust", name]
    return ["-m", "coterie.tools.cli.main", "run", *words, "--json"]


def _rounds(run: Planned, out: Path) -> int:
    log = run.path(out) / "rounds.jsonl"
    return log.read_bytes().count(b"\n") if log.is_file() else 0


def _title(run: Planned) -> str:
    return f"{run.cell.title} seed {run.seed}"


# ------------------------------------------------------------------------------------------------- what is shown


def _carry_out(runs: Sequence[Planned], out: Path, at_once: int, stderr: Console) -> list[processes.Failed[Planned]]:
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

    from coterie.data.download.ensure import fetch_for
    from coterie.tools.cli.data import progress

    for config in {repr(run.config.data): run.config for run in grid.runs}.values():
        fetch_for(config.data, partial(progress, stderr))


def _compared(grid: Grid, out: Path, failed: Sequence[processes.Failed[Planned]]) -> list[Compared]:
    from coterie.tools.cli.comparison import Compared
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


def _note_failures(failed: Sequence[processes.Failed[Planned]], out: Path) -> None:
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
    out: Path, report: Path | None, rows: Sequence[Compared], failed: Sequence[processes.Failed[Planned]]
) -> dict[str, Any]:
    from coterie.tools.cli import console
    from coterie.tools.cli.comparison import spreads

    return {
        "out": str(out),
        "report": None if report is None else str(report),
        "cells": [
            {
                "name": row.name,
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
            for row in rows
        ],
        "failed": [{"run_dir": str(one.job.path(out)), "why": one.why} for one in failed],
    }
