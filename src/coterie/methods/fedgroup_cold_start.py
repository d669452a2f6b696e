"""FedGroup's groups, and the group cold start (Algorithm 3) that makes them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from coterie.clustering.averaging import mean_by
from coterie.clustering.kmeans import fresh_kmeans
from coterie.clustering.labels import by_first_member
from coterie.clustering.linkage import agglomerate
from coterie.clustering.similarity import edc_features, madc
from coterie.core.client_table import ByClient
from coterie.core.cohort import Cohort
from coterie.core.replies import Fitted
from coterie.methods.cluster_count import ClusterCount, count
from coterie.methods.hard_clusters import Clusters, assigned

Grouping: TypeAlias = Literal["edc", "madc"]


@dataclasses.dataclass(frozen=True, eq=False)
class Groups(Clusters):
    """Groups, their first updates, and the model they are measured from. One group without updates: not begun."""

    w0: Tensor  # (P,)
    updates: Tensor  # (m, d), or (0, d) before the cold start
    clustered: Tensor  # ids of the clients that formed the groups
    of_clusters: ClassVar[tuple[str, ...]] = ("centers", "updates")

    def forget(self, ids: Tensor) -> Groups:
        """The state in which these clients formed no group."""
        groups = super().forget(ids)
        return dataclasses.replace(groups, clustered=self.clustered[~torch.isin(self.clustered, ids)])

    def measured_from(self) -> Tensor:
        """w0, from which all clients are pre-trained."""
        return self.w0[None]

    @staticmethod
    def none(w0: Tensor, features: Tensor) -> Groups:
        """Before the cold start: w0, and no client has a group."""
        nobody = torch.empty(0, dtype=torch.int64)
        return Groups(w0[None], ByClient.empty(), features, w0, w0.new_empty(0, len(features)), nobody)

    def between(self, eta_g: float) -> Groups:
        """Algorithm 2, line 18: w_j + eta_g * sum over the other groups of w_l / |w_l|."""
        if not eta_g:
            return self
        units = functional.normalize(self.centers)
        return dataclasses.replace(self, centers=self.centers + eta_g * (units.sum(0) - units))


def alike(updates: Tensor, k: ClusterCount, grouping: Grouping, cohort: Cohort) -> Tensor:
    """Which of the pre-trained clients belong together, by EDC or MADC."""
    equal = torch.ones(len(updates), dtype=torch.float64)
    m = count(functional.normalize(updates), k, equal, cohort)
    if grouping == "madc":
        return agglomerate(madc(updates), k=m, linkage="complete")
    return by_first_member(fresh_kmeans(edc_features(updates, m), m, equal, cohort.rng))


def grouped(state: Groups, reply: Fitted, labels: Tensor) -> Groups:
    """A group starts at the unweighted mean of its members' models, w0 + mean update (line 16)."""
    rows = state.w0.repeat(int(labels.max()) + 1, 1)
    centers = mean_by(labels, reply, torch.ones(len(labels)), empty=rows)
    updates = state.represent(centers - state.w0)
    groups = dataclasses.replace(state, centers=centers, updates=updates, clustered=reply.ids)
    return assigned(groups, reply.ids, labels)
