"""`coterie sweep`: a search for good hyper-parameters."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError, suggest
from coterie.tools.cli.options import AsJson, Trust

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from coterie.tools.experiments.search import Axis, Study, Task, Trial, Winner
    from coterie.training.events import Listener

BEST = 5  # trials in the table


SweepOut = Annotated[
    Path | None,
    typer.Option(help="Where the trials go; the directory of an earlier call goes on. runs/sweep-N if not given."),
]


def sweep(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE.yaml] [key=value ...]", help="As for `coterie run`: what all trials share."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=...", help="'local.lr=0.001..1 log', 'method.k=2..10' or 'method.lam=0,0.1,1'."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="How many trials there are to be in all.")] = 30,
    metric: Annotated[str, typer.Option(help="accuracy, macro_f1, loss or ari.")] = "accuracy",
    trust: Trust = None,
    prune: Annotated[bool, typer.Option("--prune", help="Stop a trial that is worse than half of the others.")] = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Trials at a time, one thread each; which are drawn then depends on their speed.")
    ] = 1,
    out: SweepOut = None,
    as_json: AsJson = False,
) -> None:
    """Search for good hyper-parameters with Optuna; each trial is a run, scored on validation samples.

    The best is then trained once more on all training samples and scored on the test samples: OUT/best-NUMBER.

    Example: coterie sweep method=wecfl --over 'local.lr=0.01..1 log' --over 'method.k=2..8' --trials 20
    """
    from rich.console import Console

    from coterie.tools.experiments.search import Study
    from coterie.training.run_directory import free_directory

    task = _task(words or [], over or [], metric, prune, trust or ())
    stderr = Console(stderr=True, quiet=as_json)
    place = out or free_directory("sweep")
    study = Study(task, place)
    try:
        _search(study, trials, jobs, stderr)
        found = study.trials()
        best = next((trial for trial in found if trial.value is not None), None)
        winner = None if best is None else _winner(study, best, stderr)
    except KeyboardInterrupt:
        again = _again(words or [], over or [], trials, metric, prune, place, jobs)
        sys.stderr.write(f"interrupted; go on with: {again}\n")
        raise typer.Exit(130) from None
    picture = _picture(study, stderr)
    command = None if best is None else shlex.join(["coterie", "run", *(words or []), *best.words])
    if as_json:
        sys.stdout.write(json.dumps(_document(place, task, found, command, picture, winner), indent=2) + "\n")
    else:
        _show(place, task, found, command, picture, winner)
    if best is None:
        raise _no_result(found)


def _no_result(found: Sequence[Trial]) -> CoterieError:
    why = f"no trial of {len(found)} ended well; the first: {found[0].why}" if found else "no trials"
    return CoterieError(why, code="sweep-no-result")


def _again(
    words: Sequence[str], over: Sequence[str], trials: int, metric: str, prune: bool, place: Path, jobs: int
) -> str:
    """The command that continues an interrupted search."""
    again = ["coterie", "sweep", *words, *(x for o in over for x in ("--over", o))]
    again += ["--trials", str(trials), "--metric", metric, *(["--prune"] if prune else []), "--out", str(place)]
    again += ["--jobs", str(jobs)] if jobs > 1 else []
    return shlex.join(again)


def _task(words: Sequence[str], over: Sequence[str], metric: str, prune: bool, trusted: Sequence[str] = ()) -> Task:
    from typing import get_args

    from coterie.tools.experiments.search import Metric, Task
    from coterie.training.config import split_words

    if metric not in get_args(Metric):
        raise CoterieError(f"--metric: unknown '{metric}'.{suggest(metric, get_args(Metric))}", code="option-invalid")
    file, changes = split_words(words)
    return Task(file, tuple(changes), tuple(map(read_axis, over)), metric, prune, tuple(trusted))  # type: ignore[arg-type]


def read_axis(text: str) -> Axis:
    """`local.lr=0.001..1 log`, `method.k=2..10` or `method.lam=0,0.1,1`."""
    key, equals, rest = (part.strip() for part in text.partition("="))
    if not equals or not key or not rest:
        raise CoterieError(
            f"--over '{text}': expected key=low..high, key=low..high log or key=value,value", code="option-invalid"
        )
    from coterie.tools.experiments.grid import KINDS, split_values
    from coterie.tools.experiments.search import Axis, Choice, Range

    key = f"{key}.name" if key in KINDS else key
    span, _, scale = rest.partition(" ")
    if ".." not in span:
        return Axis(key, Choice(tuple(dict.fromkeys(split_values(key, rest)))))
    low, _, high = span.partition("..")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise CoterieError(
            f"--over '{text}': the ends of a range are numbers, for example {key}=0.001..1", code="option-invalid"
        ) from None
    if scale.strip() not in ("", "log"):
        raise CoterieError(
            f"--over '{text}': after a range there may be 'log', not '{scale.strip()}'", code="option-invalid"
        )
    if not all(map(math.isfinite, ends)) or ends[0] >= ends[1]:
        raise CoterieError(f"--over '{text}': a range goes from a lower to a higher number", code="option-invalid")
    if scale and ends[0] <= 0:
        raise CoterieError(f"--over '{text}': a log range begins above 0", code="option-invalid")
    return Axis(key, Range(*ends, bool(scale), all(end.lstrip("+-").isdecimal() for end in (low, high))))


def _search(study: Study, trials: int, jobs: int, stderr: Console) -> None:
    from functools import partial

    from coterie.data.download import fetch_for
    from coterie.tools.cli import console
    from coterie.tools.cli.data import progress

    fetch_for(study.task.read(study.task.words).data, partial(progress, stderr))
    ended = study.trials()
    many, began, new = len(ended), time.monotonic(), 0
    best = next((trial.value for trial in ended if trial.value is not None), None)
    better = max if study.task.direction == "maximize" else min
    if many:
        _say(stderr, f"{many} trials are there already, {max(trials - many, 0)} to go")

    def tell(trial: Trial) -> None:
        nonlocal best, many, new
        many, new = many + 1, new + 1
        if trial.value is not None:
            best = trial.value if best is None else better(best, trial.value)
        left = (trials - many) * (time.monotonic() - began) / new
        ahead = f", about {console.clock(left)} left" if many < trials else ""
        said = f"{study.task.metric} {trial.value:.4g}" if trial.value is not None else f"{_state(trial)}: {trial.why}"
        top = "" if best is None else f", best {best:.4g}"
        drawn = " ".join(f"{key}={_short(value)}" for key, _, value in (word.partition("=") for word in trial.words))
        _say(stderr, f"trial {trial.number} ({many}/{trials}): {said} with {drawn}{top}{ahead}")

    def watch(number: int) -> AbstractContextManager[Listener]:
        return console.progress(stderr, f"trial {number}", transient=True)

    if jobs == 1:
        study.run(trials, watch, tell)
        return
    with console.bars(stderr, transient=True, unit="trials") as bar:
        shown = bar.begin("sweep", trials, many)

        def look(at: tuple[int, ...]) -> None:
            under_way = ", ".join(f"trial {number}" for number in at)
            bar.update(shown, completed=many, clusters=under_way)

        study.run(trials, watch, tell, jobs, look)


def _winner(study: Study, best: Trial, stderr: Console) -> Winner:
    from coterie.tools.cli import console

    _say(
        stderr,
        f"training the best, trial {best.number}, on all training samples; then it is scored on the test samples",
    )
    return study.winner(best, lambda number: console.progress(stderr, f"best ({number})", transient=True))


def _state(trial: Trial) -> str:
    return {"fail": "failed", "pruned": "pruned"}.get(trial.state, trial.state)


def _picture(study: Study, stderr: Console) -> Path | None:
    """OUT/importance.html, one file with all it needs; None, and a word about it, where it cannot be drawn."""
    try:
        from coterie.tools.cli.report import write_page
        from coterie.tools.report.page import importance_page

        file = study.out / "importance.html"
        write_page(file, importance_page(study.importance(), study.task.metric, len(study.trials())))
    except CoterieError as error:
        _say(stderr, f"no importance plot: {error}")
        return None
    return file


def _show(
    out: Path, task: Task, found: Sequence[Trial], command: str | None, picture: Path | None, winner: Winner | None
) -> None:
    from rich.console import Console

    stdout = Console()
    stdout.print(_table(task, found))
    for trial in [trial for trial in found if trial.state == "fail"][:BEST]:
        _say(stdout, f"trial {trial.number} failed: {trial.why}")
    _say(stdout, f"trials: {out}" + ("" if picture is None else f"\nimportance: {picture}"))
    if winner is not None:
        value = getattr(winner.summary, task.metric)
        _say(stdout, f"test {task.metric} of the best: {value:.4f} (run directory: {winner.path})")
    if command is not None:
        _say(stdout, f"the best again: {command}")


def _table(task: Task, found: Sequence[Trial]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=_counts(found), caption_justify="left")
    table.add_column("trial", justify="right")
    table.add_column(f"validation {task.metric}", justify="right")
    for axis in task.axes:
        table.add_column(escape(axis.key), justify="right", overflow="fold")
    table.add_column("seconds", justify="right")
    for place, trial in enumerate([trial for trial in found if trial.value is not None][:BEST]):
        drawn = dict(word.split("=", 1) for word in trial.words)
        values = [escape(_short(drawn.get(axis.key, "-"))) for axis in task.axes]
        style = "bold" if place == 0 else ""
        table.add_row(str(trial.number), f"{trial.value:.4f}", *values, f"{trial.seconds:.1f}", style=style)
    return table


def _short(text: str) -> str:
    """A drawn number with as many digits as people compare."""
    try:
        return text if text.lstrip("-").isdecimal() else f"{float(text):.4g}"
    except ValueError:
        return text


def _counts(found: Sequence[Trial]) -> str:
    many = {state: sum(trial.state == state for trial in found) for state in ("complete", "pruned", "fail")}
    return f"{many['complete']} complete, {many['pruned']} pruned, {many['fail']} failed"


def _document(
    out: Path, task: Task, found: Sequence[Trial], command: str | None, picture: Path | None, winner: Winner | None
) -> dict[str, Any]:
    from coterie.tools.cli.console import as_json
    from coterie.tools.experiments.search import directory

    return {
        "out": str(out),
        "metric": task.metric,
        "scored_on": "validation",
        "test": None if winner is None else as_json(winner.summary) | {"run_dir": str(winner.path)},
        "best": None if command is None else found[0].number,
        "command": command,
        "importance": None if picture is None else str(picture),
        "trials": [dataclasses.asdict(trial) | {"run_dir": str(directory(out, trial.number))} for trial in found],
    }


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False, emoji=False)
