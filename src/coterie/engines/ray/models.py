"""Models that stay on the machines of a Ray cluster: summed there, and transferred only if they must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.references import Ref
from coterie.engines.updates import norms_of


@dataclass(frozen=True, eq=False)
class NodeModels:
    """The models of some clients, as one object in a node's store."""

    clients: tuple[int, ...]
    node: str
    models: Any  # a reference to a tensor (len(clients), P)


class Carrier(Protocol):
    """What the engine does for models that stay on their nodes."""

    def combine(self, node: str, shares: Sequence[Tensor], models: Sequence[Any]) -> Any:
        """A reference to the sum of share @ models, computed on that node; None where no worker is left on it."""


class Measure(Protocol):
    """How the engine has the updates measured on a node: a reference to their norms, None without a worker there."""

    def __call__(self, node: str, ids: Tensor, choice: Tensor | None, models: Sequence[Any]) -> Any: ...


class RayModels:
    """The models (n, P) of a reply (see `RemoteModels`). What a dead node took with it is computed again."""

    def __init__(
        self,
        ids: Tensor,
        parts: Sequence[NodeModels],
        row: tuple[int, torch.dtype],
        carrier: Carrier,
        again: Callable[[Iterable[tuple[int, ...]]], list[NodeModels]],
        start: Ref,
        measure: Measure,
    ) -> None:
        """start: what clients started from; measure: has the norms of their updates computed on a node."""
        self._size, self.dtype = row
        self._row = {client: row for row, client in enumerate(ids.tolist())}
        self._parts, self._carrier, self._again = list(parts), carrier, again
        self._ids, self._start, self._measure = ids, start, measure
        self._here: Tensor | None = None

    def __len__(self) -> int:
        return len(self._row)

    @property
    def nbytes(self) -> int:
        """The size of all models, wherever they are stored."""
        return len(self) * self._size * self.dtype.itemsize

    def combined(self, share: Tensor) -> Tensor:
        """share (K, n) @ models: every node sums up its own, and only sums travel."""
        import ray

        if self._here is not None:
            return share @ self._here
        sums = []
        for node, parts in self._nodes().items():
            shares = [share[:, self._rows(part)] for part in parts]
            sums.append(self._carrier.combine(node, shares, [part.models for part in parts]))
        try:
            found = None if any(one is None for one in sums) else ray.get(sums)
        except ray.exceptions.RayError:
            found = None
        if found is None:  # a node was lost: the remaining models are gathered, the others computed again
            return share @ self.gathered()
        total = torch.zeros(len(share), self._size, dtype=torch.float64)
        for used, rows in found:
            total[used] += rows
        return total.to(share.dtype)

    def norms(self, choice: Tensor | None) -> Tensor:
        """The norm of each update: every node measures its own, and only numbers travel."""
        import ray

        asked: list[Any] = []
        rows: list[int] = []
        for node, parts in self._nodes().items() if self._here is None else ():
            mine = [row for part in parts for row in self._rows(part)]
            chosen = None if choice is None else choice[mine]
            asked.append(self._measure(node, self._ids[mine], chosen, [part.models for part in parts]))
            rows += mine
        try:
            found = None if not asked or any(one is None for one in asked) else ray.get(asked)
        except ray.exceptions.RayError:
            found = None
        if found is None:
            return norms_of(self.gathered(), self._start, self._ids, choice)
        out = torch.empty(len(self), dtype=torch.float64)
        out[rows] = torch.cat([one.double() for one in found])
        return out

    def _nodes(self) -> dict[str, list[NodeModels]]:
        nodes: dict[str, list[NodeModels]] = {}
        for part in self._parts:
            nodes.setdefault(part.node, []).append(part)
        return nodes

    def gathered(self) -> Tensor:
        """All models, brought here once; the workers' machines may then forget them."""
        if self._here is None:
            here = torch.empty(len(self), self._size, dtype=self.dtype)
            lost = [part for part in self._parts if not self._fetch(part, here)]
            if lost:
                found = self._again(part.clients for part in lost)
                if not all(self._fetch(part, here) for part in found):
                    raise CoterieError(
                        "engine: models were lost with their node twice in a row; is the network down?",
                        code="engine-lost",
                    )
            self._here, self._parts = here, []
        return self._here

    def _rows(self, part: NodeModels) -> list[int]:
        return [self._row[client] for client in part.clients]

    def _fetch(self, part: NodeModels, here: Tensor) -> bool:
        import ray

        try:
            here[self._rows(part)] = ray.get(part.models)
        except ray.exceptions.RayError:
            return False
        return True
