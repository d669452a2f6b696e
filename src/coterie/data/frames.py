"""Tables with named columns (a pandas, polars or pyarrow table, a dict of columns): columns are found by name.

None of these libraries is needed: whatever names its columns and gives one by its name will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieError, suggest
from coterie.data.cells import number_cells


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
