"""What StoCFL knows of its clusters, and how they merge."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.core.client_table import ByClient
from coterie.methods.hard_clusters import Clusters

S = TypeVar("S", bound="Stochastic")


@dataclasses.dataclass(frozen=True, eq=False)
class Stochastic(Clusters):
    """Clusters of those met so far, what represents them, and the global model."""

    omega: Tensor  # (P,) the global model
    anchor: Tensor  # (P,) psi = omega_0: what representations are taken from and clusters start at
    psi: Tensor  # (K, d) sum of the members' representations
    members: Tensor  # (K,) how many there are
    trained: Tensor  # (K,) how many of them have had a part in the model
    tau: float | None = dataclasses.field(default=None, kw_only=True)  # None: not chosen yet

    def measured_from(self) -> Tensor:
        """The anchor, on which everyone is represented."""
        return self.anchor[None]

    def forget(self: S, ids: Tensor) -> S:
        """Without these clients in the counts, and without what stood for clusters that were theirs alone."""
        theirs = self.labels.only(ids).values
        members = self.members.index_add(0, theirs, -torch.ones(len(theirs), dtype=self.members.dtype)).clamp(min=0)
        psi = self.psi.index_fill(0, self.only_of(ids), 0)
        state = super().forget(ids)
        return dataclasses.replace(state, members=members, psi=psi, trained=torch.minimum(self.trained, members))

    def noting(self: S, ids: Tensor, psi: Tensor) -> S:
        """The state after these clients were represented so: nothing but the sums is kept."""
        return self


def with_singletons(state: S, ids: Tensor, psi: Tensor) -> S:
    """Each of these clients is a cluster of one. Their models are not written down before it is known who merges."""
    old, new = len(state.centers), len(ids)
    parts = dataclasses.replace(
        state,
        labels=state.labels.put(ids, torch.arange(old, old + new)),
        psi=torch.cat([state.psi, psi]),
        members=torch.cat([state.members, torch.ones(new)]),
        trained=torch.cat([state.trained, torch.zeros(new)]),
    )
    return parts.noting(ids, psi)


def merged(parts: S, into: Tensor, begin: Tensor, average: bool = True) -> S:
    """Clusters become what `into` says. The model is the mean of the parts that have trained, or that of the largest.

    begin: the model of clusters that have none yet; `centers` of the parts has rows for those that do.
    """
    old, k = len(parts.centers), int(into.max()) + 1
    # The largest part that has trained, the lowest number where they tie.
    order = torch.argsort(parts.trained, descending=True, stable=True)
    best = [int(order[into[order] == j][0]) for j in range(k)]
    centers = torch.stack([parts.centers[row] if row < old else begin for row in best])
    if average:
        centers = mean_by(into[:old], parts.centers, parts.trained[:old], empty=centers)
    sums, members, trained = (
        torch.zeros(k, *t.shape[1:], dtype=t.dtype).index_add_(0, into, t)
        for t in (parts.psi, parts.members, parts.trained)
    )
    labels = ByClient(parts.labels.ids, into[parts.labels.values])
    return dataclasses.replace(parts, centers=centers, labels=labels, psi=sums, members=members, trained=trained)
