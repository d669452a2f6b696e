"""A user's own arrays, per client, made into a Federation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from coterie.data.federation import Domain, Federation, Ragged
from coterie.errors import CoterieError
from coterie.seeds import Purpose, generator


def _tensor(value: ArrayLike | Tensor, client: int, part: str) -> Tensor:
    try:
        out = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
    except TypeError as error:
        raise CoterieError(f"data: client {client}: {part} is not an array of numbers ({error})") from None
    return out.to(torch.get_default_dtype()) if out.is_floating_point() else out


def from_arrays(
    clients: Sequence[tuple[ArrayLike, ...]],
    *,
    test: float,
    truth: Sequence[int] | None,
    outputs: int | None,
    seed: int,
) -> Federation:
    """See `Federation.from_arrays`."""
    if not 0 <= test < 1:
        raise CoterieError(f"data: test is the share held out, 0 <= test < 1, not {test}")
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
            if len(x) != len(y):
                raise CoterieError(f"data: client {client} has {len(x)} inputs but {len(y)} labels")
            if xs and x.shape[1:] != xs[0].shape[1:]:
                raise CoterieError(
                    f"data: client {client} has samples of shape {tuple(x.shape[1:])}, "
                    f"client 0 of {tuple(xs[0].shape[1:])}"
                )
            if ys and y.is_floating_point() != ys[0].is_floating_point():
                raise CoterieError(f"data: client {client} has {y.dtype} labels, client 0 has {ys[0].dtype}")
        n = len(parts[1])
        if len(parts) == 2:
            order = generator(seed, Purpose.PARTITION, client).permutation(n)
            held = round(test * n)
            train.append(np.sort(order[held:]) + start)
            tests.append(np.sort(order[:held]) + start)
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
    y = y.reshape(len(y), -1) if regression else y.long()
    shown = y.shape[1] if regression else (int(y.max()) + 1 if len(y) else 0)
    return Federation(
        (Domain(torch.cat(xs), y),),
        Ragged.of(train),
        Ragged.of(tests),
        kind="regression" if regression else "classification",
        outputs=outputs or shown,
        truth=None if truth is None else np.asarray(truth, dtype=np.int64),
    )
