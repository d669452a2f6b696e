"""The parts of a reproduction: runs, what is read of them, and tables that compare them with a paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

Tree: TypeAlias = dict[str, Any]  # a configuration, as in a YAML file
Probe: TypeAlias = Literal[
    "", "centers", "clusters", "clusters_on_all", "alike", "tsne", "letters", "proximity", "majority"
]


@dataclass(frozen=True)
class Run:
    """A configuration with a name; its outcome is kept under it. Tables that need the same run share it."""

    name: str  # also its place below results/
    config: Tree  # everything but the seed
    probe: Probe = ""  # what is measured besides the curve, after training (see probes.py)
    wave: int = 0  # runs of an earlier wave come first, with all their seeds
    seconds: float | None = None  # about how much time of a processor it takes, where that was measured
    seeds: int = 1  # how many are run by default, where that is more than the table says


@dataclass(frozen=True)
class Outcome:
    """What is known of a run with one seed, as stored in results/."""

    run: str
    seed: int
    fingerprint: str  # of what the table says of the run: another one makes the outcome stale
    revision: Sequence[int]  # of the method, and of those that it wraps
    config: Tree  # with every option spelled out: what depends on defaults is compared with today's
    command: str
    versions: Mapping[str, str]
    machine: str
    finished: str
    seconds: float
    data_from: str | None  # the file used in place of a data set that could not be fetched
    curve: Mapping[str, Sequence[Any]]  # column -> value per evaluated round
    probe: Mapping[str, Any]
    processor: float | None = None  # seconds of processor time; older outcomes and resumed runs have none

    def column(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """A column of the curve as numbers; NaN where there is none."""
        values = [np.nan if v is None else v for v in self.curve.get(name, ())]
        return np.asarray(values, dtype=np.float64)


Reading: TypeAlias = Callable[[Outcome], Sequence[float]]
"""The values that a run with one seed adds to a cell; all seeds' are pooled."""


@dataclass(frozen=True)
class Cell:
    """One number of a paper's table, and how ours is computed."""

    row: str
    column: str
    run: Run
    read: Reading
    paper: float | None  # None: the paper has no such cell
    spread: float | None = None  # the paper's standard deviation
    note: str = ""  # how this cell differs from the paper, or why its number cannot be reached
    tolerance: float | None = None  # where it is not the table's
    comparable: bool = True  # False: the printed number is thought to come from a defect, or is of data not to be had

    @property
    def name(self) -> str:
        """As it is called on the command line."""
        return f"{self.row}/{self.column}"


@dataclass(frozen=True)
class Found:
    """Ours: the mean and deviation of what was read, over so many seeds."""

    mean: float
    std: float
    seeds: int
    earlier: bool = False  # of an earlier revision of the method


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, checked on our numbers: cells by name -> True, False, or None if one is missing."""

    text: str
    holds: Callable[[Callable[[str], float]], bool]
    note: str = ""  # shown if it does not hold
    place: str = ""  # where the paper says it (a section, table or figure), or whose claim it is instead


@dataclass(frozen=True)
class Checked:
    """A claim, and whether it holds on our numbers; None where a number is missing."""

    text: str
    holds: bool | None
    note: str
    place: str = ""


class Outcomes(Protocol):
    """Where outcomes can be read."""

    def of(self, run: Run) -> list[Outcome]:
        """Those of a run, of all seeds there are."""
        ...


@dataclass(frozen=True)
class OwnPage:
    """A page for a table with too many cells for a list, and claims that need more than the mean of each cell."""

    file: str  # in docs/
    claims: Callable[[Outcomes], Sequence[Checked]]
    summary: Callable[[Outcomes], str]  # lines of text, for a terminal
    markdown: Callable[[Outcomes], str]
    also: tuple[tuple[str, Callable[[Outcomes], str]], ...] = ()  # further pages that rest on the table

    def pages(self, results: Outcomes) -> list[tuple[str, str]]:
        """Files in docs/, and what is written there."""
        return [(file, text(results)) for file, text in ((self.file, self.markdown), *self.also)]


More: TypeAlias = Callable[[Outcomes], Sequence[str]]


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    name: str
    title: str
    paper: str
    protocol: str  # everything a reader must know to judge the comparison
    cells: tuple[Cell, ...]
    tolerance: float  # points within which ours agrees with the paper's
    claims: tuple[Claim, ...] = ()
    unit: str = "%"
    seeds: int = 1  # how many are run by default; of some runs more
    first_seed: int = 0  # later, where the first ones were looked at before the table was written
    own_page: OwnPage | None = None  # where docs/results.md is not the place for it
    more: More | None = None  # lines of Markdown below the table
    why: str = ""  # one line: why cells miss or claims do not hold, or what there is to know
    own: tuple[str, ...] = ()  # rows of the paper's own methods, where the others are shared with another table

    def runs(self, cells: Sequence[Cell] | None = None) -> list[Run]:
        """Every run the cells need, once."""
        return list({c.run.name: c.run for c in (self.cells if cells is None else cells)}.values())


def verdict(cell: Cell, found: Found | None, tolerance: float) -> str:
    """The verdict, in a word or two."""
    if found is None:
        return "not run"
    if cell.paper is None:
        return ""
    if not cell.comparable:
        return "not comparable"
    apart = found.mean - cell.paper
    if math.isnan(apart):
        return "no number"
    if abs(apart) <= (tolerance if cell.tolerance is None else cell.tolerance):
        return "agrees"
    return "higher" if apart > 0 else "lower"


def pooled(cell: Cell, outcomes: Sequence[Outcome], earlier: bool = False) -> Found | None:
    """Mean and (population) deviation over everything that was read, seeds and rounds alike, as WeCFL's authors do."""
    read = [found for found in map(cell.read, outcomes) if len(found)]
    if not read:
        return None
    values = [value for found in read for value in found]
    return Found(float(np.mean(values)), float(np.std(values)), len(read), earlier)


# ------------------------------------------------------------------------------------------------ readings


def best(column: str = "accuracy", scale: float = 100.0) -> Reading:
    """The largest value over the rounds: FedGroup's score."""
    return lambda outcome: [scale * float(np.nanmax(outcome.column(column)))]


def median(column: str = "accuracy", scale: float = 100.0) -> Reading:
    """The median over the rounds."""
    return lambda outcome: [scale * float(np.nanmedian(outcome.column(column)))]


def mean_of(column: str, scale: float = 1.0) -> Reading:
    """The mean over the rounds."""
    return lambda outcome: [scale * float(np.nanmean(outcome.column(column)))]


def variance_of(column: str, scale: float = 1.0) -> Reading:
    """The variance over the rounds."""
    return lambda outcome: [scale * float(np.nanvar(outcome.column(column)))]


def rounds_to(target: float, column: str = "accuracy") -> Reading:
    """The first round at which the column reaches the target; none where it never does."""

    def read(outcome: Outcome) -> list[float]:
        reached = np.flatnonzero(outcome.column(column) >= target)
        return [float(outcome.column("round")[reached[0]])] if len(reached) else []

    return read


def final(rounds: int, column: str = "accuracy", scale: float = 100.0) -> Reading:
    """The mean of the last rounds, one number per seed."""
    return lambda outcome: [scale * float(np.mean(outcome.column(column)[-rounds:]))]


def last(rounds: int = 1, column: str = "accuracy", scale: float = 100.0) -> Reading:
    """The last rounds."""
    return lambda outcome: [scale * float(v) for v in outcome.column(column)[-rounds:]]


def largest_cluster(outcome: Outcome) -> list[float]:
    """The share of clients in the largest cluster after the last round, in percent: 100 if all clients are in one."""
    sizes = outcome.curve["sizes"][-1]
    return [100.0 * max(sizes) / sum(sizes)]


def probed(*keys: str | int, scale: float = 1.0) -> Reading:
    """A number that a probe found."""

    def read(outcome: Outcome) -> list[float]:
        value: Any = outcome.probe
        for key in keys:
            value = value[key]
        return [scale * float(value)]

    return read
