"""Models that stay on the machines of a Ray cluster: summed up where they lie, brought here only if they must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.errors import CoterieError


@dataclass(frozen=True, eq=False)
class Part:
    """The models of some clients, as one object in a node's store."""

    clients: tuple[int, ...]
    node: str
    models: Any  # a reference to a tensor (len(clients), P)


class Carrier(Protocol):
    """What the engine does for models that it left where they are."""

    def combine(self, node: str, shares: Sequence[Tensor], models: Sequence[Any]) -> Any:
        """A reference to the sum of share @ models, computed on that node; None where no worker is left on it."""


class Scattered:
    """The models (n, P) of a reply (see `Elsewhere`). What a dead node took with it is computed again."""

    def __init__(
        self,
        ids: Tensor,
        parts: Sequence[Part],
        row: tuple[int, torch.dtype],
        carrier: Carrier,
        again: Callable[[Iterable[tuple[int, ...]]], list[Part]],
    ) -> None:
        self._size, self.dtype = row
        self._row = {client: row for row, client in enumerate(ids.tolist())}
        self._parts, self._carrier, self._again = list(parts), carrier, again
        self._here: Tensor | None = None

    def __len__(self) -> int:
        return len(self._row)

    @property
    def nbytes(self) -> int:
        """What all clients sent, wherever it went."""
        return len(self) * self._size * self.dtype.itemsize

    def combined(self, share: Tensor) -> Tensor:
        """share (K, n) @ models: every node sums up its own, and only sums travel."""
        import ray

        if self._here is not None:
            return share @ self._here
        nodes: dict[str, list[Part]] = {}
        for part in self._parts:
            nodes.setdefault(part.node, []).append(part)
        sums = []
        for node, parts in nodes.items():
            shares = [share[:, self._rows(part)] for part in parts]
            sums.append(self._carrier.combine(node, shares, [part.models for part in parts]))
        try:
            found = None if any(one is None for one in sums) else ray.get(sums)
        except ray.exceptions.RayError:
            found = None
        if found is None:  # a node has gone since: what is left of the models is gathered, the rest computed again
            return share @ self.gathered()
        total = torch.zeros(len(share), self._size, dtype=torch.float64)
        for used, rows in found:
            total[used] += rows
        return total.to(share.dtype)

    def gathered(self) -> Tensor:
        """All models, brought here once; the workers' machines may then forget them."""
        if self._here is None:
            here = torch.empty(len(self), self._size, dtype=self.dtype)
            lost = [part for part in self._parts if not self._fetch(part, here)]
            if lost:
                found = self._again(part.clients for part in lost)
                if not all(self._fetch(part, here) for part in found):
                    raise CoterieError("engine: models were lost with their node twice in a row; is the network down?")
            self._here, self._parts = here, []
        return self._here

    def _rows(self, part: Part) -> list[int]:
        return [self._row[client] for client in part.clients]

    def _fetch(self, part: Part, here: Tensor) -> bool:
        import ray

        try:
            here[self._rows(part)] = ray.get(part.models)
        except ray.exceptions.RayError:
            return False
        return True
