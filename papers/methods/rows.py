"""Large values per client: a table that grows without copying its values, and can be larger than memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.allocation import held, room, stored


@dataclass(frozen=True, eq=False)
class Rows:
    """A vector per client, by the client's id; `ids` ascending (n,)."""

    ids: Tensor
    rows: tuple[Tensor, ...]  # n of (d,)

    @staticmethod
    def empty() -> Rows:
        """A table without clients."""
        return Rows(torch.empty(0, dtype=torch.int64), ())

    def put(self, ids: Tensor, values: Tensor) -> Rows:
        """A table in which these clients have these values; those of the others are not copied."""
        table = dict(zip(self.ids.tolist(), self.rows, strict=True))
        left = room() - sum(held(row) for row in self.rows)
        for client, value in zip(ids.tolist(), values, strict=True):
            table[client] = stored(value, left)
            left -= held(table[client])
        order = sorted(table)
        return Rows(torch.tensor(order, dtype=torch.int64), tuple(table[client] for client in order))

    def sums(self, ids: Tensor, labels: Tensor, k: int, like: Tensor) -> Tensor:
        """The sum of these clients' values by label (k, d), of the type of `like` (..., d)."""
        table = dict(zip(self.ids.tolist(), self.rows, strict=True))
        out = like.new_zeros(k, like.shape[-1])
        for client, label in zip(ids.tolist(), labels.tolist(), strict=True):
            out[label] += table[client]
        return out
