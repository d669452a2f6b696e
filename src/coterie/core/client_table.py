"""Ids are ids, never positions: a table of values that is looked up by client id."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.constructors import explained
from coterie.core.errors import CoterieError


@explained
@dataclass(frozen=True, eq=False)
class ByClient:
    """A value per client, found by the client's id: `ids` ascending (n,), `values` (n, ...)."""

    ids: Tensor
    values: Tensor

    @staticmethod
    def empty(dtype: torch.dtype = torch.int64, shape: tuple[int, ...] = ()) -> ByClient:
        """A table without clients."""
        return ByClient(torch.empty(0, dtype=torch.int64), torch.empty((0, *shape), dtype=dtype))

    def _rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.searchsorted(self.ids, ids).clamp(max=max(len(self.ids) - 1, 0))
        known = self.ids[rows] == ids if len(self.ids) else torch.zeros_like(ids, dtype=torch.bool)
        return rows, known

    def has(self, ids: Tensor) -> Tensor:
        """Which of these clients have a value."""
        return self._rows(ids)[1]

    def at(self, ids: Tensor, default: int | float | None = None) -> Tensor:
        """The values of these clients, in their order; `default` for clients without one."""
        rows, known = self._rows(ids)
        if bool(known.all()):
            return self.values[rows]
        if default is None:
            raise CoterieError(
                f"client {int(ids[~known][0])} has no value here and no default was given", code="client-no-value"
            )
        out = torch.full((len(ids), *self.values.shape[1:]), default, dtype=self.values.dtype)
        out[known] = self.values[rows[known]]
        return out

    def get(self, client: int) -> Tensor | None:
        """The value of one client; None if it has none."""
        rows, known = self._rows(torch.tensor([client]))
        return self.values[rows[0]] if bool(known[0]) else None

    def only(self, ids: Tensor) -> ByClient:
        """The part of the table that these clients need (what an engine sends)."""
        ids = ids.sort().values
        rows, known = self._rows(ids)
        return ByClient(ids[known], self.values[rows[known]])

    def put(self, ids: Tensor, values: Tensor) -> ByClient:
        """A new table in which these clients have these values, of any shape if it has no other clients."""
        if not len(ids):
            return self
        if values.is_floating_point() and not self.values.is_floating_point():
            raise CoterieError(
                f"a table of {self.values.dtype} cannot hold {values.dtype} without loss", code="task-invalid"
            )
        values, kept = values.to(self.values.dtype), ~torch.isin(self.ids, ids)
        if not bool(kept.any()):
            order = torch.argsort(ids)
            return ByClient(ids[order], values[order])
        everyone = torch.cat([self.ids[kept], ids]).sort().values
        out = torch.empty(len(everyone), *values.shape[1:], dtype=values.dtype)
        out[torch.searchsorted(everyone, self.ids)] = self.values  # large tables are copied once
        out[torch.searchsorted(everyone, ids)] = values
        return ByClient(everyone, out)
