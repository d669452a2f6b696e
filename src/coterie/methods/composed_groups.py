"""How the clusters of a composed method change: renumbered after a clustering, resized, averaged after training."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.clustering.kmeans import centroids
from coterie.clustering.labels import renumber
from coterie.core.replies import Fitted
from coterie.methods.composed_kit import Kit, Represented
from coterie.methods.hard_clusters import averaged


def overlapping(state: Kit, found: Represented, labels: Tensor, weights: Tensor, limit: int | None) -> Tensor:
    """The labels of new clusters, renumbered to overlap most with the old ones; others get new numbers."""
    if not len(state.labels.ids):
        return labels
    means = centroids(found.points, labels, weights, found.points[: int(labels.max()) + 1])
    far = torch.stack([(means - m).square().sum(1) for m in state.means], 1)
    before = state.labels.at(found.ids, default=-1)
    return renumber(labels, before, state.labels.values.unique(), limit, far)


def regrouped(state: Kit, found: Represented, labels: Tensor, weights: Tensor, limit: int | None) -> Kit:
    """Put these clients into these clusters, with rows for new clusters."""
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
    """The upper level: each cluster's mean. Clients without a representation have weight zero."""
    if not state.means.numel():  # before the first clustering there is one cluster
        return averaged(state, reply, torch.zeros_like(reply.ids), weights)
    placed = state.labels.has(reply.ids)
    return averaged(state, reply, state.labels.at(reply.ids, default=0), weights * placed)
