"""Clients that are given one by one, as arrays or as tables, made into a Federation.

Tables with text or missing values are read as one table, by the same rules.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.seeds import Purpose, generator
from coterie.core.settings import Kind
from coterie.core.text import client_name
from coterie.data.cells import as_text, column_names, named_alike, one_column, same_length
from coterie.data.columns import (
    ColumnReader,
    ColumnRules,
    Standardise,
    TablePlan,
    choose,
    targets_to_be_standardised,
    to_be_standardised,
)
from coterie.data.federation import Domain, Federation, Ragged
from coterie.data.partitions.dealing import latest
from coterie.data.scale import Scale
from coterie.data.table import Cells, as_task, refuse_vectors, times, warn_of_amounts, warn_of_no_zero

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

    found = times(Cells([value for values in listed for value in values], f"column '{time}'", _rows(parts, who)))
    return tuple(found[part.start : part.end][kept[part.start : part.end]] for part in parts)


def _rows(parts: Sequence[_Part], who: Sequence[str]) -> Callable[[int], str]:
    """What errors call a row."""

    def row(number: int) -> str:
        part = next(part for part in parts if number < part.end)
        return f"{who[part.client]}, row {number - part.start} of its table (the first is 0)"

    return row


RULES = ColumnRules()


def _tensor(value: ArrayLike | Tensor, who: str, part: str) -> Tensor:
    if not isinstance(value, Tensor):
        try:
            # A copy: what the caller does to its array later is its own business.
            value = torch.from_numpy(np.array(value))
        except (TypeError, ValueError) as error:
            raise CoterieError(f"data: {who}: {part} is not an array of numbers ({error})", code="data-type") from None
    return value.to(torch.get_default_dtype()) if value.is_floating_point() else value


def _numbered(
    clients: Sequence[tuple[ArrayLike, ...]], who: Sequence[str]
) -> tuple[Sequence[tuple[Any, ...]], tuple[str, ...] | None]:
    """The clients with labels that are names as numbers, in the order of the sorted names; and the names."""
    found = [[as_text(y) for y in arrays[1::2]] for arrays in clients]
    given = [y for parts in found for y in parts if y is not None]
    if not given:
        return clients, None
    kinds = ["numbers" if any(y is None for y in parts) else "names" for parts in found]
    for client, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise CoterieError(
                f"data: {who[client]} has labels that are {kind}, those of {who[0]} are {kinds[0]}", code="data-labels"
            )
    if kinds[0] == "numbers":
        raise CoterieError(
            "data: labels to train on are names, those to test on numbers, or the other way about", code="data-labels"
        )
    names = np.unique(np.concatenate([y.ravel() for y in given]))
    out = []
    for arrays, parts in zip(clients, found, strict=True):
        mine = list(arrays)
        mine[1::2] = [np.searchsorted(names, y) for y in parts if y is not None]
        out.append(tuple(mine))
    return out, tuple(map(str, names))


def _same_kind(who: str, x: Tensor, y: Tensor, first_x: Tensor, first_y: Tensor, first_who: str) -> None:
    """All parts of all clients must go into one table."""
    if len(x) != len(y):
        raise CoterieError(f"data: {who} has {len(x)} inputs but {len(y)} labels", code="data-shape")
    for mine, first, what in ((x, first_x, "samples"), (y, first_y, "labels")):
        if mine.shape[1:] != first.shape[1:]:
            raise CoterieError(
                f"data: {who} has {what} of shape {tuple(mine.shape[1:])}, {first_who} of {tuple(first.shape[1:])}",
                code="data-shape",
            )
        if mine.is_floating_point() != first.is_floating_point():
            raise CoterieError(f"data: {who} has {mine.dtype} {what}, {first_who} has {first.dtype}", code="data-shape")


def split_at_random(n: int, test: float, seed: int, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of a client's n samples it trains on and which are held out, both ascending; one always stays."""
    _check_share(test)
    order = generator(seed, Purpose.PARTITION, client).permutation(n)
    held = min(round(test * n), max(n - 1, 0))
    return np.sort(order[held:]), np.sort(order[:held])


def _check_share(test: float) -> None:
    if not 0 <= test < 1:
        raise CoterieError(f"data: test is the share held out, 0 <= test < 1, not {test}", code="data-split")


class _Samples:
    """The samples of all clients end to end, and which are whose."""

    def __init__(
        self,
        who: Sequence[str],
        task: Kind | None,
        test_share: float,
        seed: int,
        times: Sequence[NDArray[np.float64]] | None = None,
    ) -> None:
        self._who, self._task, self._test_share, self._seed = who, task, test_share, seed
        self._times = times  # of each client's samples, where the latest are held out
        self._start = 0
        self.xs: list[Tensor] = []
        self.ys: list[Tensor] = []
        self.train: list[ArrayLike] = []
        self.test: list[ArrayLike] = []
        self.validation: list[NDArray[np.bool_]] = []  # of each client's samples: those given for validation

    def add(self, client: int, arrays: tuple[ArrayLike, ...]) -> None:
        """The arrays of the next client."""
        parts = self._parts(self._who[client], arrays)
        n, start = len(parts[1]), self._start
        if len(parts) == 2:
            kept, held = self._split(n, client)
            self.train.append(kept + start)
            self.test.append(held + start)
        else:
            known = sum(len(y) for y in parts[1:-1:2])  # to train and, if they are given, to validate on
            self.train.append(np.arange(known) + start)
            self.test.append(np.arange(len(parts[-1])) + start + known)
        self.validation.append(np.zeros(sum(len(y) for y in parts[1::2]), dtype=bool))
        if len(parts) == 6:
            self.validation[-1][n : n + len(parts[3])] = True
        self.xs += parts[::2]
        self.ys += parts[1::2]
        self._start += sum(len(y) for y in parts[1::2])

    def _split(self, n: int, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._times is None:
            return split_at_random(n, self._test_share, self._seed, client)
        _check_share(self._test_share)
        held = latest(np.zeros(n, dtype=np.int64), self._times[client], 1, self._test_share)
        return np.flatnonzero(~held), np.flatnonzero(held)

    def _parts(self, who: str, arrays: tuple[ArrayLike, ...]) -> list[Tensor]:
        """The arrays as tensors, checked."""
        if len(arrays) not in (2, 4, 6):
            raise CoterieError(
                f"data: {who} has {len(arrays)} arrays; give (x, y), (x_train, y_train, x_test, y_test) "
                "or (x_train, y_train, x_val, y_val, x_test, y_test)",
                code="data-shape",
            )
        parts = [_tensor(a, who, "x" if i % 2 == 0 else "y") for i, a in enumerate(arrays)]
        for i in range(1, len(parts), 2):
            refuse_vectors(parts[i], who, self._task)
            parts[i] = as_task(parts[i], self._task, who)
        for x, y in zip(parts[::2], parts[1::2], strict=True):
            _same_kind(who, x, y, (self.xs or parts)[0], (self.ys or parts[1:])[0], self._who[0])
        return parts


def _outcomes(y: Tensor) -> Tensor:
    """Targets as (n, targets), labels as (n,)."""
    if y.is_floating_point():
        return y.reshape(len(y), -1)
    if y.numel() != len(y):
        raise CoterieError(
            f"data: labels are one whole number per sample, these have shape {tuple(y.shape[1:])} each; where a sample "
            "may have several labels, give them as floats (0.0 or 1.0) and the model loss=multilabel",
            code="data-labels",
        )
    return y.reshape(-1).long()


def from_arrays(
    clients: Sequence[tuple[ArrayLike, ...]],
    test: float,
    truth: Sequence[int] | None,
    outputs: int | None,
    seed: int,
    task: Kind | None = None,
    names: Sequence[str] | None = None,
    standardise: tuple[Standardise, Standardise] = ("auto", "auto"),
    rules: ColumnRules = RULES,
    time: str | None = None,
    groups: Sequence[str | None] | None = None,
) -> Federation:
    """See `Federation.from_arrays`; standardise: inputs, targets."""
    names = _names(names, len(clients))
    who = [client_name(names, client) for client in range(len(clients))]
    tables = read_tables(clients, who, rules, time, standardise[0] is not False)
    clients, features = named_alike(clients, who) if tables is None else (tables.clients, tables.names)
    clients, called = _numbered(clients, who)
    _check_task(task, called)
    table = _filled(_Samples(who, task, test, seed, None if tables is None else tables.times), clients)
    for key, given in (("truth", truth), ("groups", groups)):
        if given is not None and len(given) != len(clients):
            raise CoterieError(
                f"data: {key} names {len(given)} clients, the data has {len(clients)}", code="data-shape"
            )
    y = _outcomes(torch.cat(table.ys))
    regression = y.is_floating_point()
    if not regression and task is None and outputs is None and called is None and len(y):
        _ask_about_labels(y)
    shown = y.shape[1] if regression else (int(y.max()) + 1 if len(y) else 0)
    x, rows = torch.cat(table.xs), Ragged.of(table.train)
    plan = None if tables is None else tables.plan
    scale = Scale(255.0) if x.dtype == torch.uint8 and standardise[0] is not False else Scale()
    named = features is not None
    inputs = (named or to_be_standardised(x, scale)) if standardise[0] == "auto" else standardise[0]
    targets = targets_to_be_standardised(y) if standardise[1] == "auto" else standardise[1]
    return Federation(
        (Domain(x, y, scale),),
        rows,
        Ragged.of(table.test),
        kind="regression" if regression else "classification",
        outputs=outputs or shown,
        truth=None if truth is None else np.asarray(truth, dtype=np.int64),
        names=names,
        class_names=called,
        features=features,
        groups=None if groups is None else tuple(None if group is None else str(group) for group in groups),
        marked=np.concatenate(table.validation) if any(mark.any() for mark in table.validation) else None,
        left_out=() if tables is None else tables.left_out,
        remarks=() if tables is None else tables.remarks,
        time=None if tables is None or tables.times is None else np.concatenate(tables.times),
    ).prepared(inputs=inputs and plan is None, targets=targets, plan=plan)


def _filled(table: _Samples, clients: Sequence[tuple[ArrayLike, ...]]) -> _Samples:
    for client, arrays in enumerate(clients):
        table.add(client, arrays)
    if not table.xs:
        raise CoterieError("data: a federation needs at least one client", code="data-empty")
    return table


def _check_lengths(clients: int, **given: Sequence[object] | None) -> None:
    for key, values in given.items():
        if values is not None and len(values) != clients:
            raise CoterieError(f"data: {key} names {len(values)} clients, the data has {clients}", code="data-shape")


def _ask_about_labels(y: Tensor) -> None:
    warn_of_amounts(y, "y", "If they are amounts, write task='regression'; if classes, task='classification'.")
    warn_of_no_zero(y, "y", "If they are right as they are, write task='classification'.")


def _check_task(task: Kind | None, called: tuple[str, ...] | None) -> None:
    """called: the names of the classes, where labels are names."""
    if task not in (None, "classification", "regression"):
        raise CoterieError(
            f"from_arrays: task is 'classification' or 'regression', not {task!r}", code="argument-invalid"
        )
    if called is not None and task == "regression":
        raise CoterieError(
            "data: the targets are names, and task is regression; write numbers or leave task out", code="data-labels"
        )


def _names(names: Sequence[str] | None, clients: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    found = tuple(map(str, names))
    if len(found) != clients:
        raise CoterieError(f"from_arrays: {len(found)} names for {clients} clients; give one each", code="client-names")
    twice = [name for name in found if found.count(name) > 1] if len(set(found)) < clients else []
    if twice:
        raise CoterieError(f"from_arrays: two clients are called '{twice[0]}'; names are unique", code="client-names")
    return found
