"""The state of a reproduction: each cell's number next to the paper's, and whether the paper's claims hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from papers.cell import Cell, Checked, Found, Table, verdict
from papers.results import Results


@dataclass(frozen=True)
class Line:
    """A cell with our number."""

    cell: Cell
    found: Found | None
    verdict: str

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.found is None or self.cell.paper is None else self.found.mean - self.cell.paper


@dataclass(frozen=True)
class Standing:
    """A table, as far as it was run."""

    table: Table
    lines: tuple[Line, ...]
    claims: tuple[Checked, ...]
    more: tuple[str, ...] = ()  # lines of Markdown that stand below the table

    @property
    def done(self) -> int:
        """Cells with a number."""
        return sum(line.found is not None for line in self.lines)

    @property
    def comparable(self) -> tuple[Line, ...]:
        """Cells with a number and a comparable one of the paper."""
        return tuple(x for x in self.lines if x.found and x.cell.paper is not None and x.cell.comparable)

    @property
    def agreeing(self) -> int:
        """How many of those agree."""
        return sum(line.verdict == "agrees" for line in self.comparable)

    @property
    def agreed(self) -> str:
        """How many comparable cells agree, or why there are none."""
        if self.comparable:
            return f"{self.agreeing} of {len(self.comparable)}"
        if all(line.cell.paper is None for line in self.lines):
            return "no numbers printed"
        return "not comparable" if any(x.found and x.cell.paper is not None for x in self.lines) else "none run"

    @property
    def of_one_seed(self) -> int:
        """Cells whose number is of a single seed: how much another would change it is not known."""
        return sum(line.found is not None and line.found.seeds == 1 for line in self.lines)

    @property
    def held(self) -> int:
        """Claims that hold."""
        return sum(c.holds is True for c in self.claims)

    @property
    def unknown(self) -> int:
        """Claims that cannot be judged, as a cell is missing."""
        return sum(c.holds is None for c in self.claims)

    @property
    def claimed(self) -> str:
        """How many claims hold of those that can be judged, and how many cannot yet."""
        known = len(self.claims) - self.unknown
        parts = [f"{self.held} of {known}"] if known else []
        return ", ".join([*parts, f"{self.unknown} not known yet"] if self.unknown else parts)

    @property
    def in_a_line(self) -> str:
        """Why not all of it agrees and holds; that all of it does, where it does."""
        begun = [line.cell.row for line in self.lines if line.found]
        idle = [name for name in self.table.own if not any(row.endswith(f" {name}") for row in begun)]
        return "; ".join(part for part in (f"not run yet: {', '.join(idle)}" if idle else "", self._reason) if part)

    @property
    def _reason(self) -> str:
        if self.table.why:
            return self.table.why
        if self.agreeing == len(self.comparable) and self.held == len(self.claims):
            return "agrees" if self.comparable else "holds" if self.claims else ""
        if self.comparable and self.agreeing == len(self.comparable) and self.held + self.unknown == len(self.claims):
            return "agrees as far as it was run"
        failed = [c.text for c in self.claims if c.holds is False]
        unknown = [c.text for c in self.claims if c.holds is None]
        return f"does not hold: {failed[0]}" if failed else f"not known yet: {unknown[0]}" if unknown else ""


class _MissingError(Exception):
    """A claim needs a cell that was not run."""


def standing(table: Table, results: Results, only: Sequence[Cell] | None = None) -> Standing:
    """Read everything there is about a table."""
    found = {cell.name: results.found(cell) for cell in table.cells}

    def ours(name: str) -> float:
        value = found[name]
        if value is None:
            raise _MissingError
        return value.mean

    checked = []
    for claim in table.claims:
        try:
            holds: bool | None = bool(claim.holds(ours))
        except _MissingError:
            holds = None
        checked.append(Checked(claim.text, holds, claim.note if holds is False else "", claim.place))
    if table.own_page is not None:
        checked += table.own_page.claims(results)
    cells = table.cells if only is None else only
    lines = tuple(Line(cell, found[cell.name], verdict(cell, found[cell.name], table.tolerance)) for cell in cells)
    more = () if table.more is None else tuple(table.more(results))
    return Standing(table, lines, tuple(checked), more)


def number(value: float | None, unit: str) -> str:
    """A number with a sensible number of digits."""
    if value is None:
        return ""
    if unit in ("%", "MSE") or abs(value) >= 10:
        return f"{value:.1f}"
    short = f"{value:.3g}"
    nearly = abs(value - round(value)) > 1e-6 and float(short).is_integer()  # an ARI of 0.9997 is not 1: it says so
    return f"{value:.4f}" if nearly else short


def ours(line: Line, unit: str) -> str:
    """Mean and deviation."""
    if line.found is None:
        return "-"
    several = line.found.seeds > 1 or line.found.std > 0
    return number(line.found.mean, unit) + (f" ± {number(line.found.std, unit)}" if several else "")
