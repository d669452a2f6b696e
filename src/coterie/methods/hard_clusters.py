"""What hard clustering methods share: K models, the cluster of each client, and how new clients start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.clustering.similarity import cosines
from coterie.core.errors import NoAnswerError
from coterie.core.tables import ByClient
from coterie.core.tasks import Evaluate, Fitted, Pick, Score
from coterie.methods.contract import Ask

C = TypeVar("C", bound="Clusters")


@dataclass(frozen=True, eq=False)
class Clusters:
    """K models and the cluster of each client."""

    centers: Tensor  # (K, P)
    labels: ByClient  # of the clients met so far
    features: Tensor  # positions in a model that represent a client: never running statistics
    of_clusters: ClassVar[tuple[str, ...]] = (
        "centers",
    )  # fields with a row per cluster: what its clients have in common

    def represent(self, theta: Tensor) -> Tensor:
        """The part of these models (or updates) that is compared."""
        first, last = int(self.features[0]), int(self.features[-1])
        if last - first + 1 == len(self.features):
            return theta[..., first : last + 1]  # a view, not a copy
        return theta[..., self.features]

    def unmet(self, ids: Tensor) -> Tensor:
        """The clients that have no cluster yet."""
        return ids[~self.labels.has(ids)]

    def start(self, ids: Tensor) -> Pick:
        """Each client's own center; new clients get one more row, the mean of all centers."""
        if len(self.centers) == 1:  # the mean of one center is that center
            return Pick(self.centers, ByClient(ids, self.labels.at(ids, default=0)))
        rows = torch.cat([self.centers, self.centers.mean(0, keepdim=True)])
        return Pick(rows, ByClient(ids, self.labels.at(ids, default=len(self.centers))))

    def measured_from(self) -> Tensor:
        """Models (r, P) that clients' updates are measured from in any round; CAM keeps these measures comparable."""
        return self.centers[:0]

    def only_of(self, ids: Tensor) -> Tensor:
        """The clusters that have clients, all of which are among these."""
        among = torch.isin(self.labels.ids, ids)
        theirs: Tensor = self.labels.values[among].unique()
        return theirs[~torch.isin(theirs, self.labels.values[~among])]

    def forget(self: C, ids: Tensor) -> C:
        """Models that belonged to these clients alone are replaced by the mean of the others."""
        rest = torch.ones(len(self.centers), dtype=torch.bool)
        rest[self.only_of(ids)] = False
        if bool(rest.all()) or not bool(rest.any()):
            return self
        refilled: dict[str, Any] = {name: _refilled(getattr(self, name), rest) for name in self.of_clusters}
        return replace(self, **refilled)

    def predictor(self) -> Evaluate:
        """A client predicts with its cluster's model."""
        return Evaluate((Pick(self.centers, self.labels),))


def least_loss(centers: Tensor, ids: Tensor, ask: Ask) -> ByClient:
    """The center that fits each of these clients best, of those that answer: for clients without an update."""
    try:
        reply = ask(Score(centers, on=ids))
    except NoAnswerError:
        return ByClient.empty()
    return ByClient(reply.ids, reply.scores.argmin(1))


def _refilled(rows: Tensor | None, rest: Tensor) -> Tensor | None:
    """Rows of clusters, of which all but the rest become the mean of the rest."""
    if rows is None or len(rows) != len(rest):
        return rows
    return torch.where(rest.reshape(-1, *([1] * (rows.ndim - 1))), rows, rows[rest].mean(0))


def assigned(state: C, ids: Tensor, labels: Tensor) -> C:
    """The state in which these clients belong to these clusters."""
    return replace(state, labels=state.labels.put(ids, labels))


def by_angle(state: C, ids: Tensor, updates: Tensor, directions: Tensor, ask: Ask) -> C:
    """These clients join the cluster of the most similar direction; a client that has not moved joins by loss."""
    moved = updates.any(1)
    state = assigned(state, ids[moved], cosines(updates[moved], directions).argmax(1))
    if moved.all():
        return state
    found = least_loss(state.centers, ids[~moved], ask)
    return assigned(state, found.ids, found.values)


def joined_by_loss(state: C, ids: Tensor, ask: Ask) -> C:
    """Each of these clients that belongs to no cluster yet joins the one whose model has the least loss on its data."""
    unmet = state.unmet(ids)
    if not len(unmet):
        return state
    if len(state.centers) == 1:  # nothing to choose from
        return assigned(state, unmet, torch.zeros_like(unmet))
    found = least_loss(state.centers, unmet, ask)
    return assigned(state, found.ids, found.values)


def averaged(state: C, reply: Fitted, labels: Tensor, weights: Tensor) -> C:
    """The M-step: every cluster becomes the weighted mean of its members' models; an empty one keeps its own."""
    return replace(state, centers=mean_by(labels, reply, weights, empty=state.centers))


D = TypeVar("D", bound="DescribedClusters")


@dataclass(frozen=True, eq=False)
class DescribedClusters(Clusters):
    """Clusters, and the descriptions of the clients in them."""

    rows: ByClient  # (n, length)

    @staticmethod
    def fresh(w0: Tensor, features: Tensor, length: int) -> DescribedClusters:
        """One model, and nobody is in a cluster."""
        return DescribedClusters(w0[None], ByClient.empty(), features, ByClient.empty(w0.dtype, (length,)))

    def mean_by_cluster(self, values: Tensor) -> Tensor:
        """The mean (K, m) of values (n, m) of the described clients, over those of each cluster; an empty one: inf."""
        none = torch.full((len(self.centers), values.shape[1]), torch.inf, dtype=values.dtype)
        return mean_by(self.labels.at(self.rows.ids), values, torch.ones(len(values)), empty=none)

    def put(self: D, ids: Tensor, labels: Tensor, rows: Tensor) -> D:
        """With these clients in these clusters, by these descriptions."""
        return replace(assigned(self, ids, labels), rows=self.rows.put(ids, rows))
