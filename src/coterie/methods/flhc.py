"""FL+HC: FedAvg for a while, one hierarchical clustering of the clients' updates, then FedAvg per cluster.

Briggs, Fan and Andras, Federated Learning with Hierarchical Clustering of Local Updates, IJCNN 2020 (Algorithm 1).
The server sees the single updates of the clustering round; before and after it, means are enough.
In the clustering round every client is asked, as in the paper, up to `cluster_at_most` drawn at random: all pairs of
updates are compared, so their number is what bounds memory. `cluster_on="cohort"` asks the round's cohort only.
A client that was not clustered trains from the same model as those that were and joins the nearest mean update.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.byclient import ByClient
from coterie.clustering import Linkage, Metric, agglomerate, cosines, distances
from coterie.domains import STRICT
from coterie.means import Weighting, mean, mean_by, weigh
from coterie.methods.clusters import Clusters, assigned, averaged
from coterie.methods.contract import Ask
from coterie.methods.counting import ClusterCount, count, enough_clients, too_few
from coterie.model import Model
from coterie.tasks import All, Cohort, Evaluate, Fit, Local, Pick, Roster


@dataclasses.dataclass(frozen=True, eq=False)
class Hierarchy(Clusters):
    """Clusters, and where the clients stood when they were clustered (None before)."""

    stem: Tensor | None = None  # (P,) the model all updates began at
    updates: Tensor | None = None  # (K, d) mean update of each cluster


@dataclass(frozen=True, config=STRICT)
class FLHC:
    """FedAvg for a while, one hierarchical clustering of the clients' updates, then FedAvg per cluster."""

    paper: ClassVar[str] = "Briggs et al. 2020, arXiv:2004.11791"

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
        enough_clients(self.k, roster)
        return Hierarchy(model.init(rng)[None], ByClient.empty(), model.part("all"))

    def round(self, state: Hierarchy, cohort: Cohort, ask: Ask) -> Hierarchy:
        """FedAvg, and in round `warmup` the clustering first."""
        if state.stem is None and (cohort.round < self.warmup or too_few(self.k, cohort)):
            reply = ask(Fit(All(state.centers[0]), local=self.local))
            w = mean(reply, weigh(reply, self.weights), empty=state.centers[0])
            return dataclasses.replace(state, centers=w[None])
        if state.stem is None:
            return self.cluster(state, cohort, ask)
        state = self.admit(state, cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        reply = ask(Fit(Pick(state.centers, state.labels), local=self.local, on=met))
        if reply.choice is None:
            return state
        return averaged(state, reply, reply.choice, weigh(reply, self.weights))

    def cluster(self, state: Hierarchy, cohort: Cohort, ask: Ask) -> Hierarchy:
        """Everyone trains from the shared model; the dendrogram of their updates is cut once and for all."""
        stem = state.centers[0]
        who = cohort.roster.ids if self.cluster_on == "all" else cohort.ids
        if len(who) > self.cluster_at_most:
            who = who[torch.from_numpy(np.sort(cohort.rng.choice(len(who), self.cluster_at_most, replace=False)))]
        reply = ask(Fit(All(stem), local=self.local, on=who))
        if reply.theta is None:
            return state
        updates, weights = state.represent(reply.theta - stem), weigh(reply, self.weights)
        k = None if self.threshold is not None else count(updates, self.k, weights, cohort.rng)
        labels = agglomerate(distances(updates, self.metric), k=k, threshold=self.threshold, linkage=self.linkage)
        rows = stem.repeat(int(labels.max()) + 1, 1)
        means = mean_by(labels, reply.theta, weights, empty=rows)
        return Hierarchy(
            means, state.labels.put(reply.ids, labels), state.features, stem, state.represent(means - stem)
        )

    def predictor(self, state: Hierarchy) -> Evaluate:
        """A client predicts with its cluster's model (before the clustering: with the one there is)."""
        return Evaluate((All(state.centers[0]),)) if state.stem is None else state.predictor()

    def admit(self, state: Hierarchy, cohort: Cohort, ask: Ask) -> Hierarchy:
        """A newcomer trains from where the others were clustered and joins the nearest mean update."""
        unmet = state.unmet(cohort.ids)
        if state.stem is None or state.updates is None or not len(unmet):
            return state
        reply = ask(Fit(All(state.stem), local=self.local, on=unmet))
        if reply.theta is None:
            return state
        update = state.represent(reply.theta - state.stem)
        if self.metric == "cosine":
            far = 1 - cosines(update, state.updates)
        else:
            far = torch.cdist(update.double(), state.updates.double(), p=1 if self.metric == "manhattan" else 2)
        return assigned(state, reply.ids, far.argmin(1))
