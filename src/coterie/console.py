"""What a person sees in a terminal: a live line per run and a table at the end. Everything goes to stderr or stdout
through rich; a program reads `--json` instead."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from coterie.catalogue import Entry
from coterie.events import Event, Listener, RoundDone, RunStarted
from coterie.metrics import Summary


@contextmanager
def progress(console: Console, title: str) -> Iterator[Listener]:
    """A listener that draws a bar with round, accuracy and clusters, when there is a terminal to draw on."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TextColumn("[cyan]{task.fields[score]}"),
        TextColumn("[magenta]{task.fields[clusters]}"),
        TextColumn("[yellow]{task.fields[missing]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task: TaskID | None = None
        lost = 0

        def listen(event: Event) -> None:
            nonlocal task, lost
            if isinstance(event, RunStarted):
                task = bar.add_task(title, total=event.rounds, completed=event.done, score="", clusters="", missing="")
            elif isinstance(event, RoundDone) and task is not None:
                lost += len(event.missing)
                bar.update(task, completed=event.round, missing=f"{lost} missed" if lost else "")
                if event.summary is not None:
                    many = event.summary.clusters
                    clusters = f"{many} cluster{'s' if many != 1 else ''}"
                    bar.update(task, score=score(event.summary), clusters=clusters)

        yield listen


def score(summary: Summary) -> str:
    """The number people ask for first."""
    return f"loss {summary.loss:.3f}" if summary.accuracy is None else f"accuracy {summary.accuracy:.1%}"


def percent(value: float | None) -> str:
    """A share as people read it."""
    return "-" if value is None else f"{100 * value:.1f} %"


def results(rows: Sequence[tuple[str, Summary, float]]) -> Table:
    """A table of finished runs."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    regression = all(summary.accuracy is None for _, summary, _ in rows)
    table.add_column("method", style="bold", no_wrap=True)
    for name in ("loss",) if regression else ("accuracy", "macro-F1"):
        table.add_column(name, justify="right")
    table.add_column("clusters", justify="right")
    table.add_column("sizes", no_wrap=True)
    for name in ("ARI", "NMI", "seconds"):
        table.add_column(name, justify="right")
    for name, s, seconds in rows:
        scores = (f"{s.loss:.4f}",) if regression else (percent(s.accuracy), percent(s.macro_f1))
        match = (f"{x:.2f}" if x is not None else "-" for x in (s.ari, s.nmi))
        sizes = " ".join(map(str, s.sizes[:12])) + (" ..." if len(s.sizes) > 12 else "")
        table.add_row(name, *scores, str(s.clusters), sizes, *match, f"{seconds:.1f}")
    return table


def listing(entries: Sequence[Entry]) -> Table:
    """A table of what there is."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, style in (("name", "bold cyan"), ("what it is", ""), ("paper", "dim")):
        table.add_column(column, style=style, no_wrap=column == "name")
    for entry in entries:
        table.add_row(*map(escape, dataclasses.astuple(entry)))
    return table


def missing_line(events: Sequence[RoundDone]) -> str | None:
    """Who did not answer, if anyone, in one line."""
    lost = [(e.round, m) for e in events for m in e.missing]
    if not lost:
        return None
    round_, first = lost[0]
    return (
        f"{len(lost)} answers were missing over {len({r for r, _ in lost})} rounds; "
        f"the first: client {first.client} in round {round_}: {first.reason}"
    )


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary's numbers under the names that `--json` promises."""
    numbers = dataclasses.asdict(summary)
    bad = {k for k, v in numbers.items() if isinstance(v, float) and not math.isfinite(v)}  # not JSON
    return {k: None if k in bad else list(v) if isinstance(v, tuple) else v for k, v in numbers.items()}
