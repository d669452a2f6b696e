"""Clients of a file, one after another, each with all its rows: only one is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieError
from coterie.data.federation import Federation
from coterie.data.table import IS_TEST, IS_TEST_OF_THREE, Chunk, Rows
from coterie.serving.row_form import Roles, RowForm
from coterie.serving.spool import ClientRows, Spool


@dataclass(frozen=True, eq=False)
class Newcomer:
    """A client that a run may not know."""

    name: str
    data: Federation | list[tuple[Any, ...]] | None  # of this client alone; None: it has no rows to place it by
    rows: ClientRows | None = None  # of a file
    labelled: bool = True  # whether it has labels to be scored by


def placed_by_labels(method: object) -> bool:
    """Whether a newcomer of a method is placed by its labels too; else its inputs alone will do."""
    return getattr(method, "places_by", "labels") == "labels"


@dataclass(frozen=True)
class Census:
    """How many rows each client has, in the order in which they first occur."""

    counts: dict[str, int]
    three_splits: bool = False  # whether numbers stand for train, val and test

    @staticmethod
    def of(rows: Rows, form: RowForm, roles: Roles, alone: str) -> Census:
        """alone: the name of the one client of rows without a client column."""
        counts: dict[str, int] = {}
        three = False
        others = [name for name in (roles.client, roles.split) if name is not None]
        for chunk in rows.chunks((), others or [_any(rows)]):
            names = [alone] * len(chunk) if roles.client is None else form.clients(chunk, roles.client, rows.title)
            for name in names:
                counts[name] = counts.get(name, 0) + 1
            three = three or (roles.split is not None and "2" in _words(chunk, roles.split))
        if not counts:
            raise CoterieError(f"{rows.title}: has no rows", code="data-empty")
        return Census(counts, three)


def read_newcomers(
    rows: Rows,
    form: RowForm,
    roles: Roles,
    census: Census,
    wanted: Sequence[str],
    *,
    required: bool,
    by_labels: bool = True,
) -> Iterator[Newcomer]:
    """The wanted clients, each whole. required: whether every row must have a label.

    by_labels: whether rows without a label say nothing of where a client belongs.
    """
    numbers = {name: i for i, name in enumerate(wanted)}
    if not numbers:
        return
    with ExitStack() as stack:
        spool = _filled(rows, form, roles, census, numbers, required, stack)
        for name, number in numbers.items():
            mine = spool.client(number)
            data = _federation(form, mine, name, roles.split is not None)
            if data is None and not by_labels:
                yield Newcomer(name, _unlabelled(form, mine, name), mine, labelled=False)
            else:
                yield Newcomer(name, data, mine)


def _filled(
    rows: Rows,
    form: RowForm,
    roles: Roles,
    census: Census,
    numbers: dict[str, int],
    required: bool,
    stack: ExitStack,
) -> Spool:
    """All rows of these clients, by client, in a file that the stack closes."""
    spool: Spool | None = None
    features = form.inputs_of(rows, roles)
    alone = next(iter(numbers))
    for chunk in rows.chunks(features, roles.names):
        names = [alone] * len(chunk) if roles.client is None else form.clients(chunk, roles.client, rows.title)
        client = np.array([numbers.get(name, -1) for name in names], dtype=np.int64)
        x = form.stored(chunk, features, rows.title)
        y = form.labels(chunk, roles.y, rows.title, required=required)
        test = np.zeros(len(chunk), dtype=bool)
        if roles.split is not None:
            test = _tests(chunk, roles.split, rows.title, census.three_splits)
        if spool is None:
            spool = Spool([census.counts[name] for name in numbers], x, y.shape[1])
            stack.callback(spool.close)
        mine = np.flatnonzero(client >= 0)
        if len(mine):
            spool.add(client[mine], mine + chunk.first, test[mine], y[mine], x[mine])
    assert spool is not None
    return spool


def _federation(form: RowForm, rows: ClientRows, name: str, split: bool) -> Federation | None:
    """The client with its labelled rows, of which those for testing are only scored."""
    labelled = np.flatnonzero(~np.isnan(rows.y).any(1))
    test = rows.test[labelled]
    if not len(labelled) or (split and test.all()):
        return None
    return form.federation(rows.x[labelled], rows.y[labelled], test if split and test.any() else None, name)


def _unlabelled(form: RowForm, rows: ClientRows, name: str) -> Federation:
    """The client with all its rows, of which none is scored; nobody looks at what stands for labels."""
    return form.federation(rows.x, np.zeros_like(rows.y), np.zeros(len(rows.y), dtype=bool), name)


def given_newcomers(data: Federation | Iterable[tuple[Any, ...]]) -> Iterator[Newcomer]:
    """Clients in memory, one by one: of a federation, or (x, y) each, which are both placed by and scored on."""
    if isinstance(data, Federation):
        for client in range(len(data)):
            yield Newcomer(str(client) if data.names is None else data.names[client], data.take([client]))
        return
    for number, arrays in enumerate(data):
        pair = tuple(arrays)
        yield Newcomer(str(number), [pair * 2 if len(pair) == 2 else pair])


def _any(rows: Rows) -> str:
    """A column to count rows by."""
    return str(getattr(rows, "x", None) or rows.names[0])


def _words(chunk: Chunk, name: str) -> list[str]:
    return [str(value).strip().lower() for value in chunk.columns[name].tolist()]


def _tests(chunk: Chunk, name: str, title: str, three: bool) -> NDArray[np.bool_]:
    meaning = IS_TEST_OF_THREE if three else IS_TEST
    found = [meaning.get(word) for word in _words(chunk, name)]
    if None in found:
        row = found.index(None)
        raise CoterieError(
            f"{title}, column '{name}', {chunk.row(row)}: {chunk.columns[name][row]!r} is no split; write train, val "
            "or test",
            code="data-cell",
        )
    return np.array(found, dtype=bool)
