"""What Halves knows between rounds, and how a group of clients is divided into clusters anew."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.core.client_table import ByClient
from coterie.core.replies import Fitted
from coterie.methods.hard_clusters import Clusters

FEW = 3  # clients per cluster, below which everyone has a model of their own


@dataclasses.dataclass(frozen=True, eq=False)
class Halved(Clusters):
    """Clusters, and what clients' halves showed from the anchor of their group.

    A group is a cluster of the time when its anchor was taken; a look divides groups, so every cluster is part of one.
    """

    anchors: Tensor  # (G, P) the models that updates are measured from
    group_of: Tensor  # (K,) the group that each cluster is part of
    looks: ByClient  # (n, 2, d) sketches of the updates on either half, from the anchor of the client's group
    samples: ByClient  # (n,) how many samples each of those clients has
    visits: float  # per client met, since the anchors were taken
    until: float  # so many visits per client later, anchors are taken anew
    personal: int  # whether clients have models of their own: 0 or 1

    @classmethod
    def begin(cls, start: Tensor, features: Tensor, size: int, until: float) -> Halved:
        """One cluster, nobody met."""
        looks, samples = ByClient.empty(start.dtype, (2, size)), ByClient.empty()
        one = torch.zeros(1, dtype=torch.int64)
        return cls(start[None], ByClient.empty(), features, start[None], one, looks, samples, 0.0, until, 0)

    def visited(self, clients: int) -> Halved:
        """Count a round's visits; when there were enough, every cluster becomes a group and is looked at again."""
        visits = self.visits + clients / max(len(self.labels.ids), clients)
        if visits <= self.until:
            return dataclasses.replace(self, visits=visits)
        looks, groups = self.looks.only(self.looks.ids[:0]), torch.arange(len(self.centers))
        fresh = dataclasses.replace(self, anchors=self.centers, group_of=groups, looks=looks)
        return dataclasses.replace(fresh, visits=0.0, until=2 * self.until)

    def looked(self, first: Fitted, second: Fitted) -> Halved:
        """The state that knows these clients' looks."""
        assert first.sketch is not None
        assert second.sketch is not None
        looks = self.looks.put(first.ids, torch.stack([first.sketch, second.sketch], 1))
        return dataclasses.replace(self, looks=looks, samples=self.samples.put(first.ids, first.n))

    def of_group(self, group: int) -> tuple[Tensor, Tensor, Tensor]:
        """The clients of a group that were looked at: ids, looks (n, 2, d) and numbers of samples."""
        ids = self.looks.ids[self.group_of[self.labels.at(self.looks.ids)] == group]
        return ids, self.looks.at(ids), self.samples.at(ids)

    def regrouped(self, group: int, ids: Tensor, labels: Tensor) -> Halved:
        """The state in which these clients of a group are divided like this.

        A cluster keeps the number of the one that most of its clients were in. Its model is the mean of the models
        that its clients had: the parent's after a split, of all that were merged after a merge.
        """
        before = self.labels.at(ids)
        k, old = int(labels.max()) + 1, len(self.centers)
        count = torch.zeros(k, old, dtype=torch.int64).index_put_((labels, before), torch.tensor(1), accumulate=True)
        number = self._numbers(group, count)
        rows = max(old, int(number.max()) + 1)
        shares = (count / count.sum(1, keepdim=True)).to(self.centers.dtype)
        centers = torch.cat([self.centers, self.centers.new_zeros(rows - old, self.centers.shape[1])])
        centers[number] = shares @ self.centers
        group_of = torch.cat([self.group_of, torch.full((rows - old,), group)])
        # Who is in the group without a look goes where most of its old cluster went.
        went = torch.arange(rows)
        here = (self.group_of == group).nonzero().flatten()
        went[here] = number[count[:, here].argmax(0)]
        everyone = ByClient(self.labels.ids, went[self.labels.values]).put(ids, number[labels])
        used, compact = everyone.values.unique(return_inverse=True)
        table = ByClient(everyone.ids, compact)
        return dataclasses.replace(self, centers=centers[used], group_of=group_of[used], labels=table)

    def with_own_models_where_few(self) -> Halved:
        """Clients have models of their own while clusters are hardly larger than single clients."""
        return dataclasses.replace(self, personal=int(len(self.centers) * FEW > len(self.labels.ids)))

    def _numbers(self, group: int, count: Tensor) -> Tensor:
        """The number of each new cluster: an old one of the group, each once, the largest overlap first; else new."""
        number = torch.full((len(count),), -1)
        free = set((self.group_of == group).nonzero().flatten().tolist())
        order = count.flatten().argsort(descending=True, stable=True)
        for place in order.tolist():
            new, old = divmod(place, count.shape[1])
            if number[new] < 0 and old in free and count[new, old] > 0:
                number[new] = old
                free.discard(old)
        rest = (number < 0).nonzero().flatten()
        number[rest] = len(self.centers) + torch.arange(len(rest))
        return number
