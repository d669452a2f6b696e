"""FL+HC: FedAvg for a while, one hierarchical clustering of the clients' updates, then FedAvg per cluster.

Briggs, Fan and Andras, Federated Learning with Hierarchical Clustering of Local Updates, IJCNN 2020 (Algorithm 1).
The server sees the single updates of the clustering round; before and after it, means are enough.
In the clustering round every client is asked, as in the paper, up to `cluster_at_most` drawn at random: all pairs of
updates are compared, so memory limits their number. `cluster_on="cohort"` asks the round's cohort only.
A client that was not clustered trains from the same model as those that were and joins the nearest mean update.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor
from torch.nn import functional

from coterie.clustering.averaging import Weighting, as_measured, mean, mean_by, weigh
from coterie.clustering.linkage import Linkage, agglomerate
from coterie.clustering.similarity import Metric, distances
from coterie.core.model import Model
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import All, Evaluate, Fit, Fitted, Local, Pick
from coterie.methods.contract import Ask, Releases, admitted
from coterie.methods.hard_clusters import Clusters, assigned, averaged, by_angle
from coterie.methods.k import ClusterCount, K, at_most


@dataclasses.dataclass(frozen=True, eq=False)
class Hierarchy(Clusters):
    """Clusters, and the mean updates by which they were found (None before)."""

    stem: Tensor | None = None  # (P,) the model that all updates started from
    updates: Tensor | None = None  # (K, d) mean update of each cluster
    of_clusters: ClassVar[tuple[str, ...]] = ("centers", "updates")

    def measured_from(self) -> Tensor:
        """The stem, once there is one."""
        return self.centers[:0] if self.stem is None else self.stem[None]


def clustered(state: Hierarchy, reply: Fitted, labels: Tensor, weights: Tensor) -> Hierarchy:
    """Put the clients that trained from the shared model into these clusters, whose models are their means."""
    stem = state.centers[0]
    stems = stem.repeat(int(labels.max()) + 1, 1)
    means = mean_by(labels, reply, weights, empty=stems)
    measured = as_measured(reply)  # newcomers are compared with what clients sent
    found = means if measured is reply else mean_by(labels, measured, weights, empty=stems)
    members = state.labels.put(reply.ids, labels)
    return Hierarchy(means, members, state.features, stem, state.represent(found - stem))


def joined_by_update(state: Hierarchy, ids: Tensor, metric: Metric, local: Local, ask: Ask) -> Hierarchy:
    """New clients train from where the others were clustered and join the nearest mean update."""
    unmet = state.unmet(ids)
    if state.stem is None or state.updates is None or not len(unmet):
        return state
    reply = ask(Fit(All(state.stem), local=local, keep=False, on=unmet))
    update = state.represent(reply.models - state.stem)
    if metric == "cosine":
        return by_angle(state, reply.ids, update, state.updates, ask)
    far = torch.cdist(update.double(), state.updates.double(), p=1 if metric == "manhattan" else 2)
    return assigned(state, reply.ids, far.argmin(1))


@dataclass(frozen=True, config=STRICT)
class FLHC:
    """FedAvg for a while, one hierarchical clustering of the clients' updates, then FedAvg per cluster."""

    paper: ClassVar[str] = "Briggs et al. 2020, arXiv:2004.11791"
    releases: ClassVar[Releases | str] = "its hierarchy is of single models, and its cut depends on all of them"

    warmup: NonNegativeInt = 5  # rounds of FedAvg before the clustering
    k: ClusterCount = 4
    threshold: PositiveFloat | None = None  # cut the dendrogram at this distance instead of at k clusters
    metric: Metric = "euclidean"
    linkage: Linkage = "complete"
    cluster_on: Literal["all", "cohort"] = "all"
    cluster_at_most: PositiveInt = 1000
    local: Local = Local()
    weights: Weighting = "size"

    @model_validator(mode="after")
    def _ward_is_euclidean(self) -> FLHC:
        if self.linkage == "ward" and self.metric != "euclidean":
            raise ValueError("linkage 'ward' is defined for metric 'euclidean' only")
        return self

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Hierarchy:
        """One random model."""
        K(self.k).check(roster)
        return Hierarchy(model.init(rng)[None], ByClient.empty(), model.part("all"))

    def round(self, state: Hierarchy, cohort: Cohort, ask: Ask) -> Hierarchy:
        """FedAvg, and in round `warmup` the clustering first."""
        if state.stem is None and (cohort.round < self.warmup or K(self.k).too_few(cohort)):
            reply = ask(Fit(All(state.centers[0]), local=self.local))
            w = mean(reply, weigh(reply, self.weights), empty=state.centers[0])
            return dataclasses.replace(state, centers=w[None])
        if state.stem is None:
            if self.k == "auto" and self.threshold is None:
                k = K(self.k).by_halves(state.centers[0], self.local, cohort, ask)
                return dataclasses.replace(self, k=k).cluster(state, cohort, ask)
            return self.cluster(state, cohort, ask)
        state = admitted(self, state, cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        reply = ask(Fit(Pick(state.centers, state.labels), local=self.local, on=met))
        return averaged(state, reply, reply.chosen, weigh(reply, self.weights))

    def cluster(self, state: Hierarchy, cohort: Cohort, ask: Ask) -> Hierarchy:
        """Everyone trains from the shared model; the dendrogram of their updates is cut once and for all."""
        stem = state.centers[0]
        who = at_most(self.cluster_at_most, cohort.roster.ids if self.cluster_on == "all" else cohort.ids, cohort)
        reply = ask(Fit(All(stem), local=self.local, on=who))
        if self.threshold is None:
            K(self.k).enough_answers(reply.ids, cohort)
        updates, weights = state.represent(reply.models - stem), weigh(reply, self.weights)
        comparable = functional.normalize(updates) if self.metric == "cosine" else updates
        k = None if self.threshold is not None else K(self.k).of(comparable, weights, cohort)
        labels = agglomerate(distances(updates, self.metric), k=k, threshold=self.threshold, linkage=self.linkage)
        return clustered(state, reply, labels, weights)

    def predictor(self, state: Hierarchy) -> Evaluate:
        """A client predicts with its cluster's model (before the clustering: with the shared one)."""
        return Evaluate((All(state.centers[0]),)) if state.stem is None else state.predictor()

    def admit(self, state: Hierarchy, cohort: Cohort, ask: Ask) -> Hierarchy:
        """A newcomer trains from where the others were clustered and joins the nearest mean update."""
        return joined_by_update(state, cohort.ids, self.metric, self.local, ask)
