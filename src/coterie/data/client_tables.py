"""Clients that bring tables with text or missing values: all of them are read as one table, by the same rules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.data.column_reader import ColumnReader
from coterie.data.encoding import TablePlan
from coterie.data.frames import column_names, one_column, same_length
from coterie.data.readers.columns import Column, times
from coterie.data.table_columns import ColumnRules, choose

Clients = Sequence[tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class ClientTables:
    """The clients' arrays with stored columns instead of tables."""

    clients: Clients
    names: tuple[str, ...]  # of the stored columns
    plan: TablePlan | None
    times: tuple[NDArray[np.float64], ...] | None  # of each client's samples
    left_out: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Part:
    """One of the tables of a client, and its rows among those of all."""

    client: int
    table: Any
    start: int
    end: int


def read_tables(
    clients: Clients, who: Sequence[str], rules: ColumnRules, time: str | None, standardise: bool
) -> ClientTables | None:
    """None where not all clients bring tables, or where all that is there are numbers, to be used as they are."""
    header = _header(clients, who)
    if header is None:
        if rules.leave_out or time is not None or isinstance(rules.categories, tuple | dict):
            raise CoterieError(
                "from_arrays: leave_out, categories and time are for tables with named columns, at every client",
                code="argument-conflict",
            )
        return None
    features = [name for name in header if name not in (*rules.leave_out, time)]
    rules.check(header, features, "the table")
    readers = [rules.reader(name) for name in features]
    parts = _read(clients, who, features, readers)
    chosen = choose(readers, rules, "the clients' tables", _rows(parts, who))
    kept = np.ones(len(chosen.x), dtype=bool) if chosen.keep is None else chosen.keep
    plan = chosen.plan(chosen.x[kept], standardise)
    if plan is None and kept.all() and len(chosen.names) == len(header):
        return None
    if chosen.left_out:
        warnings.warn(f"data: {chosen.remarks[0]}", CoterieWarning, stacklevel=6)
    made = tuple(_arrays(arrays, client, parts, chosen.x, kept, who[client]) for client, arrays in enumerate(clients))
    when = None if time is None else _times(parts, who, time, kept)
    remarks = (*chosen.remarks, *(() if time is None else (f"test rows: each client's latest by '{time}'",)))
    return ClientTables(made, chosen.names, plan, when, chosen.left_out, remarks)


def _header(clients: Clients, who: Sequence[str]) -> tuple[str, ...] | None:
    """The columns of the first table; None where not all are tables."""
    named = [(client, column_names(part)) for client, arrays in enumerate(clients) for part in arrays[::2]]
    header = named[0][1] if named else None
    if header is None or any(names is None for _, names in named):
        return None
    for client, names in named:
        if extra := [name for name in names or () if name not in header]:
            raise CoterieError(
                f"data: {who[client]} has a column '{extra[0]}', the first table only {', '.join(header)}",
                code="data-column-invalid",
            )
    return header


def _read(clients: Clients, who: Sequence[str], features: list[str], readers: list[ColumnReader]) -> list[_Part]:
    parts: list[_Part] = []
    for client, arrays in enumerate(clients):
        for table in arrays[::2]:
            columns = [one_column(table, name, features, f"data: {who[client]}") for name in features]
            same_length(columns, features, f"data: {who[client]}")
            for reader, column in zip(readers, columns, strict=True):
                reader.add_values(column)
            start = parts[-1].end if parts else 0
            parts.append(_Part(client, table, start, start + (len(columns[0]) if columns else 0)))
    return parts


def _arrays(
    arrays: tuple[Any, ...],
    client: int,
    parts: Sequence[_Part],
    x: NDArray[np.float32],
    kept: NDArray[np.bool_],
    name: str,
) -> tuple[Any, ...]:
    """A client's arrays with stored columns instead of tables, and without the rows that are left out."""
    mine = list(arrays)
    for place, part in enumerate(part for part in parts if part.client == client):
        stay = np.flatnonzero(kept[part.start : part.end])
        mine[2 * place] = x[part.start + stay]
        if len(stay) < part.end - part.start and 2 * place + 1 < len(mine):
            y = mine[2 * place + 1]
            if len(y) != part.end - part.start:
                raise CoterieError(
                    f"data: {name} has {part.end - part.start} inputs but {len(y)} labels", code="data-shape"
                )
            mine[2 * place + 1] = y[torch.from_numpy(stay)] if isinstance(y, Tensor) else np.asarray(y)[stay]
    return tuple(mine)


def _times(
    parts: Sequence[_Part], who: Sequence[str], time: str, kept: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], ...]:
    """When each sample of each client was."""
    for before, part in pairwise(parts):
        if part.client == before.client:
            raise CoterieError(
                f"from_arrays: time: {who[part.client]} has test samples of its own; leave time out, or give (x, y)",
                code="argument-conflict",
            )
    columns = [one_column(part.table, time, (time,), f"data: {who[part.client]}") for part in parts]
    listed = [c.astype("datetime64[us]").tolist() if c.dtype.kind == "M" else c.tolist() for c in columns]

    found = times(Column([value for values in listed for value in values], f"column '{time}'", _rows(parts, who)))
    return tuple(found[part.start : part.end][kept[part.start : part.end]] for part in parts)


def _rows(parts: Sequence[_Part], who: Sequence[str]) -> Callable[[int], str]:
    """What errors call a row."""

    def row(number: int) -> str:
        part = next(part for part in parts if number < part.end)
        return f"{who[part.client]}, row {number - part.start} of its table (the first is 0)"

    return row
