"""What a person sees in a terminal: a live line per run, its clusters below it, and a table at the end. Everything goes
to stderr or stdout through rich; a program reads `--json` instead."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from coterie.catalogue import Entry
from coterie.events import Event, Listener, RoundDone, RunStarted
from coterie.metrics import Summary
from coterie.tasks import Evaluated

if TYPE_CHECKING:
    from coterie.grid import Outcome

SHOWN = 10  # clusters in the live table
AROUND = 6  # lines of a terminal that the live table leaves to everything else

# ------------------------------------------------------------------------------------------------- while a run goes on


@contextmanager
def progress(console: Console, title: str, transient: bool = False) -> Iterator[Listener]:
    """A listener that draws a bar with round, accuracy, clusters, rate and time left, and the clusters below it while
    the run goes on, when there is a terminal to draw on. `transient`: the bar goes when the run is over."""
    with bars(console, transient) as bar:
        task: TaskID | None = None
        pace, lost = Pace(0), 0

        def listen(event: Event) -> None:
            nonlocal task, pace, lost
            if isinstance(event, RunStarted):
                pace = Pace(event.rounds, event.done)
                task = bar.begin(title, event.rounds, event.done)
            elif isinstance(event, RoundDone) and task is not None:
                lost += len(event.missing)
                pace.reach(event.round)
                bar.update(task, completed=event.round, pace=str(pace), missing=f"{lost} missed" if lost else "")
                if event.summary is not None:
                    many = event.summary.clusters
                    clusters = f"{many} cluster{'s' if many != 1 else ''}"
                    bar.update(task, score=score(event.summary), clusters=clusters)
                if event.fresh is not None and console.is_terminal:
                    bar.below = live_clusters(event.fresh.clients, min(SHOWN, console.height - AROUND))

        try:
            yield listen
        finally:
            bar.below = None  # the table at the end says it better


class Bars(Progress):
    """Bars over rounds, and something below them."""

    below: RenderableType | None = None

    def begin(self, title: str, rounds: int, done: int = 0) -> TaskID:
        """A new bar; `update` its score, clusters, missing and pace, which are texts."""
        return self.add_task(escape(title), total=rounds, completed=done, score="", clusters="", missing="", pace="")

    def get_renderables(self) -> Iterable[RenderableType]:
        """What is drawn."""
        yield self.make_tasks_table(self.tasks)
        if self.below is not None:
            yield self.below


def bars(console: Console, transient: bool = False, unit: str = "rounds") -> Bars:
    """Bars for `console`; nothing is drawn without a terminal, or where it is quiet."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("[cyan]{task.fields[score]}"),
        TextColumn("[magenta]{task.fields[clusters]}"),
        TextColumn("[yellow]{task.fields[missing]}"),
        TextColumn("[dim]{task.fields[pace]}"),
    )
    silent = not console.is_terminal or console.quiet
    return Bars(*columns, console=console, disable=silent, transient=transient)


class Pace:
    """How fast rounds go by since this was made, and how long the rest will take."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._first, self._done, self._began = total, done, done, time.monotonic()
        self._seconds = 0.0

    def reach(self, done: int) -> None:
        """So many rounds are done now."""
        self._done, self._seconds = done, time.monotonic() - self._began

    def __str__(self) -> str:
        new = self._done - self._first
        if new <= 0 or self._seconds <= 0:
            return ""
        rate = new / self._seconds
        left = max(self._total - self._done, 0) / rate
        speed = f"{rate:.1f} rounds/s" if rate >= 1 else f"{1 / rate:.1f} s/round"
        return f"{speed}, {clock(left)} left" if left else f"{speed}, {clock(self._seconds)}"


def clock(seconds: float) -> str:
    """0:07, 12:30, 1:02:03."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass(frozen=True)
class ClusterScore:
    """How the clients of a cluster fare, each counted by its test samples; None without any (or for regression)."""

    cluster: int
    clients: int
    accuracy: float | None
    loss: float | None


def cluster_scores(reply: Evaluated) -> list[ClusterScore]:
    """One per cluster in use, by ascending number; none for methods without clusters."""
    if reply.choice is None:
        return []
    found, weight = reply.choice.numpy(), reply.n.double().numpy()

    def mean(values: Any, here: Any) -> float | None:
        counted = here & (weight > 0)
        score = float(np.average(values[counted], weights=weight[counted])) if counted.any() else math.nan
        return score if math.isfinite(score) else None

    accuracy, loss = reply.accuracy.double().numpy(), reply.loss.double().numpy()
    return [
        ClusterScore(int(k), int((found == k).sum()), mean(accuracy, found == k), mean(loss, found == k))
        for k in np.unique(found)
    ]


def live_clusters(reply: Evaluated, most: int = SHOWN) -> RenderableType | None:
    """A compact table of the clusters, the largest where there are too many; None where there are none to show."""
    rows = cluster_scores(reply)
    if not rows or most < 1:
        return None
    kept = sorted(sorted(rows, key=lambda row: -row.clients)[:most], key=lambda row: row.cluster)
    regression = all(row.accuracy is None for row in rows)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("cluster", "clients", "loss" if regression else "accuracy"):
        table.add_column(name, justify="right")
    for row in kept:
        value = percent(row.accuracy) if not regression else "-" if row.loss is None else f"{row.loss:.4f}"
        table.add_row(str(row.cluster), str(row.clients), value)
    if len(kept) < len(rows):
        rest = sum(row.clients for row in rows) - sum(row.clients for row in kept)
        table.add_row(f"{len(rows) - len(kept)} more", str(rest), "", style="dim")
    return Padding(table, (0, 0, 0, 2))


def score(summary: Summary) -> str:
    """The number people ask for first."""
    return f"loss {summary.loss:.3f}" if summary.accuracy is None else f"accuracy {summary.accuracy:.1%}"


def percent(value: float | None) -> str:
    """A share as people read it."""
    return "-" if value is None else f"{100 * value:.1f} %"


# ------------------------------------------------------------------------------------------------- when runs are over


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


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; no deviation of one."""

    mean: float
    std: float | None
    many: int


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
    digits: int
    factor: int = 1
    better: Callable[..., str] | None = None  # max or min, where one end is better


COLUMNS = (
    Column("loss", "loss", 4, better=min),
    Column("accuracy", "accuracy %", 1, 100, max),
    Column("macro_f1", "macro-F1 %", 1, 100, max),
    Column("clusters", "clusters", 1),
    Column("ari", "ARI", 2, better=max),
    Column("seconds", "seconds", 1),
)


def spreads(row: Compared) -> dict[str, Spread]:
    """Each number's mean and deviation over the seeds; a number that some seed does not have is left out."""
    found = {}
    for column in COLUMNS:
        seconds = column.key == "seconds"
        values = [one.seconds if seconds else getattr(one.summary, column.key) for one in row.outcomes]
        if values and all(value is not None and math.isfinite(value) for value in values):
            std = float(np.std(values, ddof=1)) if len(values) > 1 else None
            found[column.key] = Spread(float(np.mean(values)), std, len(values))
    return found


def comparison(rows: Sequence[Compared]) -> Table:
    """A table of what was compared, mean and deviation over seeds, the best of each column in bold."""
    numbers = [spreads(row) for row in rows]
    hidden = ("loss",) if any("accuracy" in found for found in numbers) else ("accuracy", "macro_f1")
    columns = [column for column in COLUMNS if column.key not in hidden]
    incomplete = any(len(row.outcomes) < row.seeds for row in rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("run", overflow="fold")
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    if incomplete:
        table.add_column("seeds", justify="right", style="yellow", no_wrap=True)
    texts = [_texts(column, numbers) for column in columns]
    for i, row in enumerate(rows):
        ended = [f"{len(row.outcomes)} of {row.seeds}"] if incomplete else []
        table.add_row(escape(row.name), *(column[i] for column in texts), *ended)
    return table


def _texts(column: Column, numbers: Sequence[Mapping[str, Spread]]) -> list[str]:
    spread = [found.get(column.key) for found in numbers]
    means = ["-" if one is None else f"{column.factor * one.mean:.{column.digits}f}" for one in spread]
    known = [mean for mean in means if mean != "-"]
    best = column.better(known, key=float) if column.better and len(known) > 1 else None
    cells = []
    for mean, one in zip(means, spread, strict=True):
        text = mean
        if one is not None and column.key == "clusters" and not one.std:
            text = f"{one.mean:g}"
        elif one is not None and one.std is not None:
            text = f"{mean} ± {column.factor * one.std:.{column.digits}f}"
        cells.append(f"[bold]{text}[/]" if mean == best else text)
    return cells


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
