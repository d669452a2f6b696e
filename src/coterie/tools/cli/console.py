"""What a person sees in a terminal: a live line per run, its clusters below it, and a table at the end. Everything goes
to stderr or stdout through rich; a program reads `--json` instead."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from coterie.core.metrics import Summary
from coterie.core.tasks import Evaluated
from coterie.core.text import short
from coterie.layers.privacy import Spent, words
from coterie.training.events import Event, Listener, RoundDone, RunStarted
from coterie.training.score_text import ERRORS, WORST, cluster_scores, errors, own_scores, own_values, percent, worst


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


SHOWN = 10  # clusters in the live table
WIDE = 110  # columns of a terminal that has room for a whole progress line
AROUND = 6  # lines of a terminal that the live table leaves to everything else

# ------------------------------------------------------------------------------------------------- while a run goes on


@contextmanager
def progress(console: Console, title: str, transient: bool = False) -> Iterator[Listener]:
    """A listener that draws a bar with round, accuracy, clusters, rate and time left, and the clusters below it while
    the run goes on, when there is a terminal to draw on. `transient`: the bar goes when the run is over."""
    with bars(console, transient) as bar:
        task: TaskID | None = None
        pace, lost, chosen = Pace(0), 0, (0, "")

        def listen(event: Event) -> None:
            nonlocal task, pace, lost, chosen
            if isinstance(event, RunStarted):
                pace = Pace(event.rounds, event.done)
                task = bar.begin(title, event.rounds, event.done)
            elif isinstance(event, RoundDone) and task is not None:
                lost += len(event.missing)
                for one in event.counted:
                    if (one.k, one.rule) != chosen:
                        chosen = one.k, one.rule
                        bar.console.print(f"round {event.round}: {one}", highlight=False, soft_wrap=True)
                pace.reach(event.round)
                bar.update(task, completed=event.round, pace=str(pace), missing=f"{lost} missed" if lost else "")
                seen = event.summary or event.validation
                if seen is not None:
                    many = seen.clusters
                    clusters = f"{many} cluster{'s' if many != 1 else ''}"
                    bar.update(task, score=score(seen), clusters=clusters)
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
    """Bars for `console`; nothing is drawn without a terminal, or where it is quiet. A narrow one has less in it."""
    narrow = console.width < WIDE
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=8 if narrow else 24),
        MofNCompleteColumn(),
        *(() if narrow else (TextColumn(unit),)),
        TextColumn("[cyan]{task.fields[score]}"),
        TextColumn("[magenta]{task.fields[clusters]}"),
        TextColumn("[yellow]{task.fields[missing]}"),
        _Left("[dim]{task.fields[pace]}") if narrow else TextColumn("[dim]{task.fields[pace]}"),
    )
    silent = not console.is_terminal or console.quiet
    return Bars(*columns, console=console, disable=silent, transient=transient)


class _Left(TextColumn):
    """The time left alone, without the rate."""

    def render(self, task: Task) -> Text:
        """Of "5.0 rounds/s, 0:07 left" the second half."""
        return Text(str(task.fields["pace"]).rpartition(", ")[2], style="dim")


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
        value = percent(row.accuracy) if not regression else "-" if row.loss is None else short(row.loss)
        table.add_row(str(row.cluster), str(row.clients), value)
    if len(kept) < len(rows):
        rest = sum(row.clients for row in rows) - sum(row.clients for row in kept)
        table.add_row(f"{len(rows) - len(kept)} more", str(rest), "", style="dim")
    return Padding(table, (0, 0, 0, 2))


def score(summary: Summary) -> str:
    """The number people ask for first."""
    return f"loss {short(summary.loss, 3)}" if summary.accuracy is None else f"accuracy {summary.accuracy:.1%}"


# ------------------------------------------------------------------------------------------------- when runs are over


@dataclass(frozen=True)
class Results:
    """A table of finished runs. Where a terminal is too narrow, sizes of clusters and worst-off clients go below it."""

    rows: Sequence[tuple[str, Summary, float]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As wide as it may be."""

        def fits(table: Table) -> bool:
            return Measurement.get(console, options.update(width=10_000), table).maximum <= options.max_width

        whole, narrow, scores = self.table(), self.table(sizes=False), self.table(sizes=False, fair=False)
        if fits(whole):
            yield whole
            return
        fair = fits(narrow)
        if not fair and not fits(scores):
            scores.padding = (0, 1, 0, 0)  # names are broken only where even this is too wide
        yield narrow if fair else scores
        for name, summary, _ in self.rows:
            below = "" if fair or summary.worst_decile is None else f"; {WORST}: {worst(summary)}"
            yield Text(f" clients per cluster of {name.strip()}: {_sizes(summary)}{below}", style="dim")

    def table(self, sizes: bool = True, fair: bool = True) -> Table:
        """With the sizes of clusters and the scores of the worst-off clients, or without."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        regression = all(summary.accuracy is None for _, summary, _ in self.rows)
        table.add_column("method", style="bold", overflow="fold")  # the only one to be broken where there is no room
        own = own_scores([summary for _, summary, _ in self.rows])
        shown = own or (tuple(ERRORS) if regression else ("accuracy", "macro-F1"))
        for name in (*shown, WORST) if fair else shown:
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("clusters", justify="right", no_wrap=True)
        if sizes:
            table.add_column("sizes", no_wrap=True)
        known = any(s.ari is not None for _, s, _ in self.rows)  # only where there is a truth to agree with
        for name in ("ARI", "NMI", "seconds") if known else ("seconds",):
            table.add_column(name, justify="right", no_wrap=True)
        for name, s, seconds in self.rows:
            scores = tuple(errors(s)) if regression else (percent(s.accuracy), percent(s.macro_f1))
            scores = tuple(own_values(s, own)) if own else scores
            scores = (*scores, worst(s)) if fair else scores
            match = [f"{x:.2f}" if x is not None else "-" for x in (s.ari, s.nmi)] if known else []
            many = (_sizes(s),) if sizes else ()
            table.add_row(escape(name), *scores, str(s.clusters), *many, *match, f"{seconds:.1f}")
        return table


def stacked(
    first: str, names: Sequence[str], columns: Sequence[tuple[str, Sequence[str]]], width: int
) -> Iterator[Table]:
    """A row per name with these columns of numbers; those for which there is no room follow in further tables."""
    taken = max(Text.from_markup(name).cell_len for name in (first, *names))
    taken = min(taken, max(width // 2, 12))  # a longer name is folded
    waiting = [
        (max(Text.from_markup(cell).cell_len for cell in (title, *cells)), title, cells) for title, cells in columns
    ]
    while waiting:
        table, left = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)), width - taken - 2
        table.add_column(first, overflow="fold", min_width=taken)
        here = list[tuple[int, str, Sequence[str]]]()
        while waiting and (not here or left >= waiting[0][0] + 2):
            left -= waiting[0][0] + 2
            here.append(waiting.pop(0))
        for _, title, _ in here:
            table.add_column(title, justify="right", no_wrap=True)
        for i, name in enumerate(names):
            table.add_row(name, *(cells[i] for _, _, cells in here))
        yield table


def _sizes(summary: Summary) -> str:
    return " ".join(map(str, summary.sizes[:12])) + (" ..." if len(summary.sizes) > 12 else "")


def results(rows: Sequence[tuple[str, Summary, float]]) -> Results:
    """A table of finished runs."""
    return Results(rows)


def missing_line(events: Sequence[RoundDone]) -> str | None:
    """Who did not answer, if anyone, in one line."""
    lost = [(e.round, m) for e in events for m in e.missing]
    if not lost:
        return None
    round_, first = lost[0]
    return (
        f"{len(lost)} answers were missing over {len({r for r, _ in lost})} rounds; "
        f"the first: {first.who} in round {round_}: {first.reason}{_rejected(events)}"
    )


def privacy_line(spent: Spent | None) -> str | None:
    """What a run with privacy has cost its clients."""
    return None if spent is None else f"privacy: {words(spent)}"


def privacy_json(spent: Spent | None) -> dict[str, Any]:
    """The same under the name that `--json` promises; null where there was no noise."""
    if spent is None:
        return {}
    return {"privacy": {"epsilon": spent.epsilon if math.isfinite(spent.epsilon) else None, "delta": spent.delta}}


def _rejected(events: Sequence[RoundDone]) -> str:
    """Whose updates were too large, and how often."""
    often = Counter(m.who for e in events for m in e.missing if m.client in e.rejected)
    named = ", ".join(f"{who} ({times} of {len(events)} rounds)" for who, times in often.most_common(5))
    more = f" and {len(often) - 5} more" if len(often) > 5 else ""
    return f"; updates rejected: {named}{more}" if often else ""


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary's numbers under the names that `--json` promises."""
    numbers = dataclasses.asdict(summary)
    bad = {k for k, v in numbers.items() if isinstance(v, float) and not math.isfinite(v)}  # not JSON
    return {k: None if k in bad else list(v) if isinstance(v, tuple) else v for k, v in numbers.items()}


def warned(warnings: Sequence[str], console: Console, of: str = "") -> None:
    """What is wrong with a run that has ended."""
    for text in warnings:
        line = f"warning: {of}{': ' if of else ''}{text}"
        console.print(line, style="yellow", soft_wrap=True, highlight=False, markup=False, emoji=False)
