"""A user's own arrays, per client, made into a Federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.seeds import Purpose, generator
from coterie.core.settings import Kind
from coterie.core.text import client_name
from coterie.data.client_tables import read_tables
from coterie.data.domain import Domain
from coterie.data.encoding import Standardise, targets_to_be_standardised, to_be_standardised
from coterie.data.federation import Federation
from coterie.data.frames import as_text, named_alike
from coterie.data.labels import as_task, refuse_vectors, warn_of_amounts, warn_of_no_zero
from coterie.data.ragged import Ragged
from coterie.data.scale import Scale
from coterie.data.split_by_time import latest
from coterie.data.table_columns import ColumnRules

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


class _Table:
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
    table = _filled(_Table(who, task, test, seed, None if tables is None else tables.times), clients)
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


def _filled(table: _Table, clients: Sequence[tuple[ArrayLike, ...]]) -> _Table:
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
