"""What a composed method keeps: clusters, the mean representation of each, and how they go over into new ones."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.clustering.kmeans import centroids
from coterie.clustering.labels import renumber
from coterie.core.client_table import ByClient
from coterie.core.local import GRADIENT
from coterie.core.references import All, Pick
from coterie.core.replies import Fitted
from coterie.core.tasks import Fit, Score
from coterie.methods.contract import Ask
from coterie.methods.hard_clusters import Clusters, averaged


@dataclasses.dataclass(frozen=True, eq=False)
class Kit(Clusters):
    """Clusters, the mean representation of each, and how long they have not changed."""

    means: Tensor  # (K, d)
    anchor: Tensor  # (P,) where gradients are taken
    unchanged: int  # clusterings in a row
    done: bool  # no more clustering

    def measured_from(self) -> Tensor:
        """Where gradients are taken."""
        return self.anchor[None]

    @staticmethod
    def fresh(centers: Tensor, features: Tensor) -> Kit:
        """Nobody belongs anywhere yet."""
        return Kit(centers, ByClient.empty(), features, centers.new_empty(0, 0), centers[0], 0, False)

    def of_least_loss(self, losses: Represented, anew: bool) -> Pick:
        """The row that was just found best for each client; unless it is chosen anew, its own where it has one."""
        best, own = losses.points.argmin(1), self.labels.at(losses.ids, default=-1)
        return Pick(self.centers, ByClient(losses.ids, best if anew else torch.where(own < 0, best, own)))

    def losses(self, ask: Ask, on: Tensor | None = None) -> Represented:
        """The loss of each center on each of these clients' data."""
        scored = ask(Score(self.centers, on=on))
        return Represented(scored.ids, scored.scores)

    def gradients(self, ask: Ask, on: Tensor | None = None) -> Represented:
        """The gradient of the anchor on each of these clients' data."""
        reply = ask(Fit(All(self.anchor), local=GRADIENT, keep=False, on=on))
        return Represented(reply.ids, self.represent(self.anchor - reply.models))

    def models(self, reply: Fitted, since: Pick | None) -> Represented:
        """What of their models represents clients; or of how these changed since where they started."""
        moved = reply.models if since is None else reply.models - since.centers[reply.chosen]
        return Represented(reply.ids, self.represent(moved))


@dataclasses.dataclass(frozen=True, eq=False)
class Represented:
    """What stands for each of these clients."""

    ids: Tensor
    points: Tensor  # (n, d)

    def of(self, ids: Tensor) -> Represented:
        """Those of them that are among these."""
        both = torch.isin(self.ids, ids)
        return Represented(self.ids[both], self.points[both])


def overlapping(state: Kit, found: Represented, labels: Tensor, weights: Tensor, limit: int | None) -> Tensor:
    """The labels of new clusters, renumbered to overlap most with the old ones; one without an old one is new."""
    if not len(state.labels.ids):
        return labels
    means = centroids(found.points, labels, weights, found.points[: int(labels.max()) + 1])
    far = torch.stack([(means - m).square().sum(1) for m in state.means], 1)
    before = state.labels.at(found.ids, default=-1)
    return renumber(labels, before, state.labels.values.unique(), limit, far)


def regrouped(state: Kit, found: Represented, labels: Tensor, weights: Tensor, limit: int | None) -> Kit:
    """These clients in these clusters, with room for those that were not there before."""
    points, before = found.points, state.labels.at(found.ids, default=-1)
    k = max(int(labels.max()) + 1, len(state.centers), limit or 0)
    extra = state.centers.mean(0, keepdim=True).repeat(k - len(state.centers), 1)
    old = state.means if state.means.numel() else points.new_zeros(0, points.shape[1])
    room = torch.cat([old, points.mean(0, keepdim=True).repeat(k - len(old), 1)])
    same = len(state.labels.ids) > 0 and torch.equal(before, labels)
    return dataclasses.replace(
        state,
        centers=torch.cat([state.centers, extra]),
        labels=state.labels.put(found.ids, labels),
        means=mean_by(labels, points, weights, empty=room),
        unchanged=state.unchanged + 1 if same else 0,
    )


def averaged_by_place(state: Kit, reply: Fitted, weights: Tensor) -> Kit:
    """The upper level: each cluster's mean. Who could not be represented has no say in one."""
    if not state.means.numel():  # before the first clustering there is one cluster
        return averaged(state, reply, torch.zeros_like(reply.ids), weights)
    placed = state.labels.has(reply.ids)
    return averaged(state, reply, state.labels.at(reply.ids, default=0), weights * placed)
