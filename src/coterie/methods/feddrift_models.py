"""FedDrift's models: how they are opened, merged and dropped."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.clustering.linkage import agglomerate
from coterie.core.client_table import ByClient
from coterie.methods.hard_clusters import Clusters, assigned


@dataclasses.dataclass(frozen=True, eq=False)
class Concepts(Clusters):
    """A model per concept, and how well each client was served."""

    records: ByClient  # (n,) each client's least loss when it was last tested, before it trained
    used: Tensor  # (K,) the time step in which somebody last used each model

    def joined(self, ids: Tensor, models: Tensor) -> Concepts:
        """The state in which these clients use these models."""
        return assigned(self, ids, models)

    def merged(self, ids: Tensor, losses: Tensor, most: float) -> Concepts:
        """One model for those that are at most so far apart, by the losses (n, K) of these clients.

        A model that none of these clients uses stays as it is: there is nothing to measure it on.
        """
        now = self.labels.at(ids)
        places = now.unique()
        if len(places) < 2:
            return self
        # on[i, j]: the mean loss of model i on the clients of model j
        on = torch.stack([losses[now == place].mean(0)[places] for place in places], 1)
        worse = on - on.diagonal()[:, None]
        apart = torch.maximum(worse, worse.T).clamp(min=0).fill_diagonal_(0)
        groups = agglomerate(apart, threshold=most, linkage="complete")
        number = torch.arange(len(self.centers))
        number[places] = places[[int((groups == g).nonzero()[0]) for g in groups.tolist()]]
        clients = torch.bincount(self.labels.values, minlength=len(number)).to(self.centers.dtype).clamp(min=1)
        kept, row = number.unique(return_inverse=True)
        share = torch.zeros(len(kept), len(number), dtype=self.centers.dtype)
        share[row, torch.arange(len(number))] = clients
        alone = share.gt(0).sum(1) == 1
        centers = (share / share.sum(1, keepdim=True)) @ self.centers
        centers[alone] = self.centers[kept[alone]]  # to the bit
        used = torch.stack([self.used[row == k].max() for k in range(len(kept))])
        labels = ByClient(self.labels.ids, row[self.labels.values])
        return dataclasses.replace(self, centers=centers, labels=labels, used=used)

    def opened(self, ids: Tensor, starts: Tensor, step: int) -> Concepts:
        """The state in which each of these clients has a new model of its own, with this start; marks what is used."""
        first = len(self.centers)
        state = self.joined(ids, first + torch.arange(len(ids)))
        used = torch.cat([self.used, self.used.new_zeros(len(ids))])
        used[state.labels.values.unique()] = step
        return dataclasses.replace(state, centers=torch.cat([self.centers, starts]), used=used)

    def within(self, most: int) -> Concepts:
        """Without the longest unused of the models that nobody uses, where there are too many."""
        idle = torch.ones(len(self.centers), dtype=torch.bool)
        idle[self.labels.values.unique()] = False
        spare = idle.nonzero()[:, 0]
        gone = spare[self.used[spare].argsort(stable=True)][: max(len(self.centers) - most, 0)]
        keep = torch.ones_like(idle)
        keep[gone] = False
        labels = ByClient(self.labels.ids, (keep.cumsum(0) - 1)[self.labels.values])
        return dataclasses.replace(self, centers=self.centers[keep], labels=labels, used=self.used[keep])
