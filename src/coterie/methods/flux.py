"""FLUX: clusters by the moments of what a common model makes of clients' data; newcomers need no labels.

Fenoglio et al., FLUX: Efficient Descriptor-Driven Clustered Federated Learning under Arbitrary Distribution Shifts,
NeurIPS 2025 (arXiv:2511.22305). After `warmup` rounds of FedAvg everyone describes its data by the common model: mean
and deviation of the latent features, projected to `size` numbers, of all samples and of each label; every block of
`size` numbers is scaled to 0..1 over all clients. k: elbow is DBSCAN with at least two members, which is single linkage
up to eps, the elbow of the sorted distances to the nearest neighbour; a number is k-means (FLUX-prior). FedAvg in each
cluster. A newcomer sends the moments of all its samples under the same frozen model and joins the nearest mean: labels
play no part, so a change of P(y|x) alone is not seen.
The server sees the moments of every client, and means of models.
Open or different: the paper's text was not available, and no cell of its tables is claimed. When to cluster is a number
of rounds (the authors' code: accuracy rises by less than 6 points); the projection is a fixed count sketch (theirs: PCA
of random points); a label without samples is zeros (theirs: -1); new clusters start at the common model.
Measured (`bench/newcomers_without_labels.py`, seeds 0-2): MNIST, rotated and in class groups, 60 clients, 20 of them
newcomers, MLP, 10 rounds: ARI of the newcomers 1.0, and the accuracy of those that join by the least loss on labelled
data (90.3 and 98.0 % on average); each sends 80 bytes, 0.013 % of a model.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean_by, weigh
from coterie.clustering.kmeans import by_first_member, fresh_kmeans, nearest
from coterie.clustering.linkage import agglomerate, elbow
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import Describe, Evaluate, Fit
from coterie.methods.contract import Ask, Releases, admitted, once
from coterie.methods.hard_clusters import Clusters, assigned, averaged
from coterie.methods.k import K, at_most


@dataclasses.dataclass(frozen=True, eq=False)
class MomentClusters(Clusters):
    """Clusters, the model that descriptions are made with, and the mean description of each without labels."""

    encoder: Tensor  # (P,)
    scale: Tensor  # (2, 2) least and largest value of the blocks without labels: means, deviations
    means: Tensor  # (K, 2 size), or (0, 2 size) before the clustering
    of_clusters: ClassVar[tuple[str, ...]] = ("centers", "means")

    @staticmethod
    def fresh(w: Tensor, features: Tensor, size: int) -> MomentClusters:
        """One model, and nobody has described anything."""
        return MomentClusters(w[None], ByClient.empty(), features, w, w.new_zeros(2, 2), w.new_empty(0, 2 * size))

    def scaled(self, rows: Tensor) -> Tensor:
        """Descriptions without labels, on the scale of those that were clustered."""
        return _between(rows.reshape(len(rows), 2, -1), self.scale[0], self.scale[1])


def scaled(rows: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Descriptions (n, length) with every block of `size` numbers from 0 to 1, and each block's extremes before."""
    blocks = rows.reshape(len(rows), -1, size)
    low, high = blocks.amin((0, 2)), blocks.amax((0, 2))
    return _between(blocks, low, high), low, high


def _between(blocks: Tensor, low: Tensor, high: Tensor) -> Tensor:
    spread = torch.where(high > low, high - low, torch.ones_like(low))
    return ((blocks - low[:, None]) / spread[:, None]).flatten(1)


def found(
    state: MomentClusters, ids: Tensor, labels: Tensor, points: Tensor, scale: tuple[Tensor, Tensor]
) -> MomentClusters:
    """These clients in these clusters, which start at the model that they were described with."""
    encoder, equal = state.centers[0], torch.ones(len(points), dtype=torch.float64)
    means = mean_by(labels, points, equal, empty=points[: int(labels.max()) + 1])
    centers = encoder.repeat(len(means), 1)
    state = replace(state, centers=centers, encoder=encoder, scale=torch.stack(scale), means=means)
    return assigned(state, ids, labels)


@dataclass(frozen=True, config=STRICT)
class FLUX:
    """Clusters by the moments of latent features under a common model; newcomers join without labels."""

    paper: ClassVar[str] = "Fenoglio et al. 2025, arXiv:2511.22305"
    places_by: ClassVar[str] = "inputs"
    releases: ClassVar[Releases | str] = Releases(signals=once, descriptions=True)

    k: PositiveInt | Literal["elbow"] = 4
    warmup: NonNegativeInt = 3  # rounds of FedAvg before the clustering
    size: PositiveInt = 10  # l, numbers that the latent features are projected to
    classes: NonNegativeInt = 10  # labels that are described each; 0: nobody needs labels
    cluster_at_most: PositiveInt = 1000
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> MomentClusters:
        """One random model."""
        K(self.k).check(roster)
        return MomentClusters.fresh(model.init(rng), model.part("all"), self.size)

    def round(self, state: MomentClusters, cohort: Cohort, ask: Ask) -> MomentClusters:
        """FedAvg, and after `warmup` rounds the clustering first; then FedAvg in each cluster."""
        if not len(state.means) and cohort.round >= self.warmup and not K(self.k).too_few(cohort):
            state = self.cluster(state, cohort, ask)
        state = admitted(self, state, cohort, ask)
        reply = ask(Fit(state.start(cohort.ids), local=self.local))
        placed = state.labels.has(reply.ids) | (len(state.means) == 0)
        return averaged(state, reply, state.labels.at(reply.ids, default=0), weigh(reply, self.weights) * placed)

    def cluster(self, state: MomentClusters, cohort: Cohort, ask: Ask) -> MomentClusters:
        """Everyone describes its data under the model that there is."""
        encoder, who = All(state.centers[0]), at_most(self.cluster_at_most, cohort.roster.ids, cohort)
        reply = ask(Describe("moments", self.size, encoder, classes=self.classes, on=who))
        K(self.k).enough_answers(reply.ids, cohort)
        points, low, high = scaled(reply.rows, self.size)
        return found(state, reply.ids, self.labels(points, cohort), points[:, : 2 * self.size], (low[:2], high[:2]))

    def labels(self, points: Tensor, cohort: Cohort) -> Tensor:
        """Which clients belong together."""
        if self.k == "elbow":
            far = torch.cdist(points.double(), points.double())
            return agglomerate(far, threshold=elbow(far), linkage="single")
        return by_first_member(fresh_kmeans(points, self.k, torch.ones(len(points)).double(), cohort.rng))

    def predictor(self, state: MomentClusters) -> Evaluate:
        """A client predicts with its cluster's model (before the clustering: with the common one)."""
        return state.predictor() if len(state.means) else Evaluate((All(state.centers[0]),))

    def admit(self, state: MomentClusters, cohort: Cohort, ask: Ask) -> MomentClusters:
        """A newcomer joins the nearest mean description; it needs no labels."""
        if not len(unmet := state.unmet(cohort.ids)) or not len(state.means):
            return state
        reply = ask(Describe("moments", self.size, All(state.encoder), on=unmet))
        return assigned(state, reply.ids, nearest(state.scaled(reply.rows), state.means))
