"""The table of `coterie compare`: means and deviations over seeds, the best of each column in bold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from coterie.core.formatting import short

if TYPE_CHECKING:
    from coterie.tools.experiments.grid import Outcome


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


LOSSES = ("loss", "constant")  # may be of any size
ALONE = ("gain", "worse")  # columns that need a run of the method `local`
FAIR = ("worst_decile", *ALONE)  # columns about single clients
TOLD = "gain, worse: over clients alone (the method local), and the share of clients that fare worse than alone"
HINT = "gain, worse: against clients alone; needs a run of the method local with the same settings: method=...,local"
COLUMNS = (
    Column("loss", "loss", 4, better=min),
    Column("r2", "R2", 2, better=max),
    Column("constant", "constant", 4),
    Column("accuracy", "accuracy %", 1, 100, max),
    Column("macro_f1", "macro-F1 %", 1, 100, max),
    Column("worst_decile", "worst 10 %", 1, 100, max),
    Column("gain", "gain", 1, 100, max),
    Column("worse", "worse %", 1, 100, min),
    Column("clusters", "clusters", 1),
    Column("ari", "ARI", 2, better=max),
    Column("seconds", "seconds", 1),
)


# The same where clients are scored by their loss.
OF_LOSSES = {
    "worst_decile": Column("worst_decile", "worst 10 %", 4, better=min),
    "gain": Column("gain", "gain", 4, better=max),
}


def spreads(row: Compared) -> dict[str, Spread]:
    """Each number's mean and deviation over the seeds; a number that some seed does not have is left out."""
    found = {}
    for column in COLUMNS:
        values = [_value(column.key, one) for one in row.outcomes]
        known = [value for value in values if value is not None and math.isfinite(value)]
        if known and len(known) == len(values):
            std = float(np.std(known, ddof=1)) if len(known) > 1 else None
            found[column.key] = Spread(float(np.mean(known)), std, len(known))
    return found


def _value(key: str, one: Outcome) -> float | None:
    """A number of a finished run."""
    if key == "seconds":
        return one.seconds
    value: float | None = getattr(one.against, key, None) if key in ALONE else getattr(one.summary, key)
    return value


@dataclass(frozen=True)
class Comparison:
    """A table of what was compared. On a narrow terminal the columns about single clients follow in a second one."""

    rows: Sequence[Compared]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As wide as it may be."""
        numbers = [spreads(row) for row in self.rows]
        classes = any("accuracy" in found for found in numbers)
        hidden = ("loss", "r2", "constant") if classes else ("accuracy", "macro_f1")
        columns = [
            column if classes else OF_LOSSES.get(column.key, column) for column in COLUMNS if column.key not in hidden
        ]
        whole = self._table(columns, numbers)
        if Measurement.get(console, options.update(width=10_000), whole).maximum <= options.max_width:
            yield whole
        else:
            yield self._table([column for column in columns if column.key not in FAIR], numbers)
            yield self._table([column for column in columns if column.key in FAIR], numbers)
        known = any(key in found for found in numbers for key in ALONE)
        yield Text(f" {TOLD if known else HINT}", style="dim")

    def _table(self, columns: Sequence[Column], numbers: Sequence[Mapping[str, Spread]]) -> Table:
        incomplete = any(len(row.outcomes) < row.seeds for row in self.rows)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        table.add_column("run", overflow="fold")
        for column in columns:
            table.add_column(column.title, justify="right", no_wrap=True)
        if incomplete:
            table.add_column("seeds", justify="right", style="yellow", no_wrap=True)
        texts = [_texts(column, numbers) for column in columns]
        for i, row in enumerate(self.rows):
            ended = [f"{len(row.outcomes)} of {row.seeds}"] if incomplete else []
            table.add_row(escape(row.name), *(column[i] for column in texts), *ended)
        return table


def comparison(rows: Sequence[Compared]) -> Comparison:
    """A table of what was compared, mean and deviation over seeds, the best of each column in bold."""
    return Comparison(rows)


def _texts(column: Column, numbers: Sequence[Mapping[str, Spread]]) -> list[str]:
    spread = [found.get(column.key) for found in numbers]
    means = ["-" if one is None else _fixed(column, one.mean) for one in spread]
    known = [mean for mean in means if mean != "-"]
    best = column.better(known, key=float) if column.better and len(known) > 1 else None
    cells = []
    for mean, one in zip(means, spread, strict=True):
        text = mean
        if one is not None and column.key == "clusters" and not one.std:
            text = f"{one.mean:g}"
        elif one is not None and one.std is not None:
            text = f"{mean} ± {_fixed(column, one.std)}"
        cells.append(f"[bold]{text}[/]" if mean == best else text)
    return cells


def _fixed(column: Column, value: float) -> str:
    """So many decimals, but of a loss only where that is readable."""
    if column.key in LOSSES or OF_LOSSES.get(column.key) is column:
        return short(value, column.digits)
    return f"{column.factor * value:.{column.digits}f}"
