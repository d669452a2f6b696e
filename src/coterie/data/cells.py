"""Cells of a table as values: which are numbers, which are missing, which are dates."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from datetime import UTC, date, datetime
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Compared in lower case. In a column of text, none and - are values (no discount; a negative test).
MISSING_TEXT = frozenset(("", "nan", "n/a", "#n/a", "<na>", "null"))
NOT_AVAILABLE = MISSING_TEXT | {"na", "?"}  # these two may be values (Namibia), which `data.na` says
MISSING_NUMBER = NOT_AVAILABLE | {"none", "-", "."}
BOOLEANS = {"false": 0.0, "true": 1.0}
OTHER_DATES = re.compile(r"\d{1,2}[./]\d{1,2}[./]\d{2,4}([ T].*)?")  # the order of day and month is anybody's guess
WHOLE = re.compile(r"(-?\d+)\.0+")
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")  # 22,3 and 1.234,5; also 1,234, whatever it means

Bad: TypeAlias = tuple[int, str]  # the first row that is no number, and what is there


def is_hole(value: Any) -> bool:
    """Whether a value says that there is none: None, NaN, and pandas' own NA and NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return bool(value != value) if isinstance(value, float | np.floating | np.datetime64) else False


def as_cell(value: Any) -> str:
    """A value as a csv file has it; empty where it is missing."""
    if isinstance(value, str):
        return value.strip()
    if is_hole(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(float(value)) < 2**53:
        return str(int(value))
    return str(value)


def category(cell: str, values: Container[str] = (), *, na: bool = False) -> str | None:
    """The value of a cell of text; None where it is missing. 3.0 is 3: a table with holes has no whole numbers.

    values: those that it may have, whatever they mean elsewhere. na: whether NA and ? are values.
    """
    if cell.lower() in (MISSING_TEXT if na else NOT_AVAILABLE) and cell not in values:
        return None
    found = WHOLE.fullmatch(cell)
    return cell if found is None else found[1]


def parsed(cells: Iterable[str]) -> NDArray[np.float64]:
    """Cells of text as numbers; NaN where they are none."""
    cells = list(cells)
    try:
        return np.array(list(map(float, cells)), dtype=np.float64)
    except ValueError:
        return np.array([number_in(cell) for cell in cells], dtype=np.float64)


def number_in(cell: str) -> float:
    """The number that a text is; NaN if it is none."""
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def finite(wide: NDArray[np.float64]) -> NDArray[np.float32]:
    """As they are stored; NaN for numbers that are too large."""
    with np.errstate(over="ignore"):
        values = wide.astype(np.float32)
    values[~np.isfinite(values)] = np.nan
    return values


def number_cells(values: NDArray[Any]) -> tuple[NDArray[np.float64], Bad | None]:
    """A column of numbers, of text or of anything, as numbers: NaN where missing; and the first that is no number."""
    if values.dtype.kind in "biuf":
        wide = values.astype(np.float64)
        odd = np.flatnonzero(np.isnan(finite(wide)) & ~np.isnan(wide))
        return wide, (int(odd[0]), str(values[odd[0]])) if len(odd) else None
    cells = [as_cell(value) for value in values.tolist()]
    return numbers_in(cells)


def numbers_in(cells: list[str]) -> tuple[NDArray[np.float64], Bad | None]:
    """Cells of text likewise; true and false are 1 and 0."""
    wide = parsed(cells)
    bad: Bad | None = None
    for row in np.flatnonzero(np.isnan(finite(wide))).tolist():
        word = cells[row].strip().lower()
        if word in BOOLEANS:
            wide[row] = BOOLEANS[word]
        elif word in MISSING_NUMBER:
            wide[row] = np.nan
        elif bad is None:
            bad = (row, cells[row])
    return wide, bad


def text_cells(values: NDArray[Any], known: Container[str] = (), *, na: bool = False) -> list[str | None]:
    """A column of anything as the values of categories; None where missing. known, na: see `category`."""
    return [category(as_cell(value), known, na=na) for value in values.tolist()]


def is_date(text: str) -> bool:
    """Whether a text is a date, or a date and a time."""
    return time_in(text) is not None or OTHER_DATES.fullmatch(text) is not None


def time_in(value: Any) -> float | None:
    """Seconds since 1970 of an ISO date (2024-03-01, 2024-03-01T12:30) or of a library's own; None if it is none."""
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else float(value.astype("datetime64[us]").astype(np.int64)) / 1e6
    if isinstance(value, str):
        if not re.match(r"\d{4}-?[\dW]", value):
            return None
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime) or is_hole(value):
        return None
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
