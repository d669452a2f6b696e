"""Tables as they come: cells that are numbers, missing or dates; columns of a table in memory; texts as numbers."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieError, suggest

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


def column_names(x: Any) -> tuple[str, ...] | None:
    """The names of a table's columns; None for arrays, and where columns have numbers only."""
    if isinstance(x, Mapping):
        names = list(x)
    elif isinstance(x, np.ndarray):
        names = list(x.dtype.names or ())
    else:
        found = getattr(x, "column_names", None)  # pyarrow, whose `columns` are the columns themselves
        found = getattr(x, "columns", None) if found is None else found
        if found is None or callable(found):
            return None
        names = list(found)
    return tuple(map(str, names)) if names and all(isinstance(name, str) for name in names) else None


def columns(x: Any, wanted: Sequence[str], where: str) -> NDArray[Any]:
    """These columns of a table, in this order (n, columns); others are passed over. `where` begins the error."""
    found = [_numbers(one_column(x, name, wanted, where), name, where) for name in wanted]
    same_length(found, wanted, where)
    return np.stack(found, 1)


def one_column(x: Any, name: str, wanted: Sequence[str], where: str) -> NDArray[Any]:
    """One of the wanted columns of a table."""
    names = column_names(x) or ()
    if name not in names:
        raise CoterieError(
            f"{where}: the table has no column '{name}'.{suggest(name, names)} Wanted: {', '.join(wanted)}.",
            code="data-column-unknown",
        )
    if names.count(name) > 1:
        raise CoterieError(f"{where}: the table has two columns '{name}'; rename one", code="data-column-invalid")
    found = np.asarray(x[name])
    if found.ndim != 1:
        raise CoterieError(
            f"{where}: column '{name}' is not a list of values; for one row write ['{name}'] = [value]",
            code="data-column-invalid",
        )
    return found


def same_length(found: Sequence[NDArray[Any]], names: Sequence[str], where: str) -> None:
    """Refuse columns of several lengths."""
    for name, column in zip(names, found, strict=True):
        if len(column) != len(found[0]):
            raise CoterieError(
                f"{where}: column '{name}' has {len(column)} rows, '{names[0]}' has {len(found[0])}; give all the same",
                code="data-column-invalid",
            )


def positional(x: Any, names: Sequence[str], where: str) -> dict[str, NDArray[Any]]:
    """Rows of values (numbers, text, None) as a table of these columns."""
    try:
        rows = x if isinstance(x, np.ndarray) else np.asarray(x, dtype=None if hasattr(x, "__array__") else object)
    except ValueError:  # rows of several lengths
        rows = np.empty(0, dtype=object)
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise CoterieError(
            f"{where}: expected a table, or rows of {len(names)} values ({', '.join(names)}); got shape {rows.shape}",
            code="data-shape",
        )
    return {name: rows[:, place] for place, name in enumerate(names)}


def _numbers(found: NDArray[Any], name: str, where: str) -> NDArray[Any]:
    if found.dtype.kind in "biuf":
        return found
    numbers, bad = number_cells(found) if found.dtype.kind in "OUST" else (found, (0, ""))
    if bad is not None:
        raise CoterieError(
            f"{where}: column '{name}' is not all numbers (text, or missing values); correct it or leave it out",
            code="data-column-invalid",
        )
    return numbers


def named_alike(
    clients: Sequence[tuple[Any, ...]], who: Sequence[str]
) -> tuple[Sequence[tuple[Any, ...]], tuple[str, ...] | None]:
    """Clients whose inputs are tables, with all their columns in the order of the first one; and the names.

    who: what each client is called.
    Clients may come as arrays without names beside them: then there is nothing to compare.
    """
    tables = [column_names(arrays[0]) if len(arrays) else None for arrays in clients]
    first = next((names for names in tables if names is not None), None)
    if first is None:
        return clients, None
    out = []
    for client, arrays in enumerate(clients):
        mine = list(arrays)
        for place in range(0, len(mine), 2):
            names = column_names(mine[place])
            if names is None:
                continue
            if extra := [name for name in names if name not in first]:
                known = ", ".join(first)
                raise CoterieError(
                    f"data: {who[client]} has a column '{extra[0]}', the first table only {known}",
                    code="data-column-invalid",
                )
            mine[place] = columns(mine[place], first, f"data: {who[client]}")
        out.append(tuple(mine))
    return out, first if all(names is not None for names in tables) else None


def as_text(y: Any) -> NDArray[np.str_] | None:
    """Labels that are names, as an array of text; None where they are numbers.

    Lists and arrays of strings, and a column of strings or categories as pandas has them.
    """
    if isinstance(y, np.ndarray) or hasattr(y, "__array__"):
        found = np.asarray(y)
        if found.dtype.kind == "U":
            return found
        if found.dtype.kind not in "OT":
            return None
        y = found.ravel().tolist()
    if isinstance(y, list | tuple) and y and all(isinstance(value, str) for value in y):
        return np.asarray(y, dtype=np.str_)
    return None


WORD = re.compile(r"\w+")


def hashed(texts: Sequence[str], size: int = 512) -> Tensor:
    """Texts as vectors (n, size): a word adds 1 + log(count), or subtracts it, at a place that follows from the word.

    Upper case is lower case; each vector has length 1, that of a text without words is zeros. Half precision.
    """
    table = np.zeros((len(texts), size), np.float16)
    places: dict[str, tuple[int, float]] = {}
    for row, text in enumerate(texts):
        vector = np.zeros(size)
        for word, count in Counter(WORD.findall(text.lower())).items():
            if word not in places:
                code = zlib.crc32(word.encode())  # the same on every machine and in every process
                places[word] = (code >> 1) % size, 1.0 if code & 1 else -1.0
            place, sign = places[word]
            vector[place] += sign * (1 + np.log(count))
        table[row] = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return torch.from_numpy(table)
