"""A user's own arrays, per client, made into a Federation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.data.federation import Domain, Federation, Ragged
from coterie.errors import CoterieError
from coterie.seeds import Purpose, generator


def _tensor(value: ArrayLike | Tensor, client: int, part: str) -> Tensor:
    if not isinstance(value, Tensor):
        try:
            # A copy: what the caller does to its array later is its own business.
            value = torch.from_numpy(np.array(value))
        except (TypeError, ValueError) as error:
            raise CoterieError(f"data: client {client}: {part} is not an array of numbers ({error})") from None
    return value.to(torch.get_default_dtype()) if value.is_floating_point() else value


def _numbered(clients: Sequence[tuple[ArrayLike, ...]]) -> tuple[Sequence[tuple[Any, ...]], tuple[str, ...] | None]:
    """The clients with labels that are names as numbers, in the order of the sorted names; and the names."""
    found = [[np.asarray(y) if _is_text(y) else None for y in arrays[1::2]] for arrays in clients]
    given = [y for parts in found for y in parts if y is not None]
    if not given:
        return clients, None
    kinds = ["numbers" if any(y is None for y in parts) else "names" for parts in found]
    for client, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise CoterieError(f"data: client {client} has labels that are {kind}, those of client 0 are {kinds[0]}")
    if kinds[0] == "numbers":
        raise CoterieError("data: labels to train on are names, those to test on numbers, or the other way about")
    names = np.unique(np.concatenate([y.ravel() for y in given]))
    out = []
    for arrays, parts in zip(clients, found, strict=True):
        mine = list(arrays)
        mine[1::2] = [np.searchsorted(names, y) for y in parts if y is not None]
        out.append(tuple(mine))
    return out, tuple(map(str, names))


def _is_text(y: object) -> bool:
    if isinstance(y, np.ndarray):
        return bool(y.dtype.kind == "U")
    return isinstance(y, list | tuple) and bool(y) and all(isinstance(value, str) for value in y)


def _same_kind(client: int, x: Tensor, y: Tensor, first_x: Tensor, first_y: Tensor) -> None:
    """All parts of all clients must go into one table."""
    if len(x) != len(y):
        raise CoterieError(f"data: client {client} has {len(x)} inputs but {len(y)} labels")
    for mine, first, what in ((x, first_x, "samples"), (y, first_y, "labels")):
        if mine.shape[1:] != first.shape[1:]:
            raise CoterieError(
                f"data: client {client} has {what} of shape {tuple(mine.shape[1:])}, "
                f"client 0 of {tuple(first.shape[1:])}"
            )
        if mine.is_floating_point() != first.is_floating_point():
            raise CoterieError(f"data: client {client} has {mine.dtype} {what}, client 0 has {first.dtype}")


def split_at_random(n: int, test: float, seed: int, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of a client's n samples it trains on and which are held out, both ascending; one always stays."""
    if not 0 <= test < 1:
        raise CoterieError(f"data: test is the share held out, 0 <= test < 1, not {test}")
    order = generator(seed, Purpose.PARTITION, client).permutation(n)
    held = min(round(test * n), max(n - 1, 0))
    return np.sort(order[held:]), np.sort(order[:held])


def from_arrays(
    clients: Sequence[tuple[ArrayLike, ...]],
    *,
    test: float,
    truth: Sequence[int] | None,
    outputs: int | None,
    seed: int,
) -> Federation:
    """See `Federation.from_arrays`."""
    clients, names = _numbered(clients)
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    train: list[ArrayLike] = []
    tests: list[ArrayLike] = []
    start = 0
    for client, arrays in enumerate(clients):
        if len(arrays) not in (2, 4):
            raise CoterieError(
                f"data: client {client} has {len(arrays)} arrays; give (x, y) or (x_train, y_train, x_test, y_test)"
            )
        parts = [_tensor(a, client, "x" if i % 2 == 0 else "y") for i, a in enumerate(arrays)]
        for x, y in zip(parts[::2], parts[1::2], strict=True):
            _same_kind(client, x, y, (xs or parts)[0], (ys or parts[1:])[0])
        n = len(parts[1])
        if len(parts) == 2:
            kept, held = split_at_random(n, test, seed, client)
            train.append(kept + start)
            tests.append(held + start)
        else:
            train.append(np.arange(n) + start)
            tests.append(np.arange(len(parts[3])) + start + n)
        xs += parts[::2]
        ys += parts[1::2]
        start += sum(len(y) for y in parts[1::2])
    if not xs:
        raise CoterieError("data: a federation needs at least one client")
    if truth is not None and len(truth) != len(train):
        raise CoterieError(f"data: truth names {len(truth)} clients, the data has {len(train)}")
    y = torch.cat(ys)
    regression = y.is_floating_point()
    if not regression and y.numel() != len(y):
        raise CoterieError(f"data: labels are one whole number per sample, these have shape {tuple(y.shape[1:])} each")
    y = y.reshape(len(y), -1) if regression else y.reshape(-1).long()
    shown = y.shape[1] if regression else (int(y.max()) + 1 if len(y) else 0)
    return Federation(
        (Domain(torch.cat(xs), y),),
        Ragged.of(train),
        Ragged.of(tests),
        kind="regression" if regression else "classification",
        outputs=outputs or shown,
        truth=None if truth is None else np.asarray(truth, dtype=np.int64),
        class_names=names,
    )
