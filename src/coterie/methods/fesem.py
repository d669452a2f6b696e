"""FeSEM: k-means over client models; the centroids are the cluster models.

Xie et al., Multi-Center Federated Learning, 2021 (Eq. 5-7): assign each client to the nearest center, replace
a center by the mean of its clients' models, send it to them, train locally, repeat.
The server sees every client's model (its `features` part decides the cluster).

k-means++ finds the first clusters; later rounds continue the paper's EM from the last round's centers.
Everyone takes part in the paper. Where few do, the first clustering sees more of them than the round's cohort (`alpha`,
as in FedGroup): k-means cannot find the clusters from a handful of clients.
A client the server has not met joins the center of least loss on its own data, before it trains.
FeSEM as the authors of WeCFL and of FedGroup run it is `papers/methods/fesem.py`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt
from torch import Tensor

from coterie.clustering.averaging import Weighting, weigh
from coterie.clustering.kmeans import fresh_kmeans, warm_kmeans
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.parts import Part
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import Evaluate, Fit, Fitted
from coterie.methods.contract import Ask, Releases, admitted, once
from coterie.methods.hard_clusters import Clusters, assigned, averaged, joined_by_loss
from coterie.methods.k import ClusterCount, K


@dataclass(frozen=True, config=STRICT)
class FeSEM:
    """k-means over client models; the centroids are the cluster models."""

    paper: ClassVar[str] = "Xie et al. 2021, arXiv:2005.01026"
    releases: ClassVar[Releases | str] = Releases(signals=once, models=True, votes=True)

    k: ClusterCount = 4
    local: Local = Local()
    features: Part = "all"  # what of a client's model is clustered; or [names] of parameters
    kmeans_weights: Weighting = "equal"  # of a client in the clustering
    weights: Weighting = "equal"  # of a client in its cluster's model
    alpha: NonNegativeInt = 20  # the first clustering asks at least alpha * k clients, if there are that many

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Clusters:
        """One common start; clients differ by what they learn from it."""
        K(self.k).check(roster)
        return Clusters(model.init(rng)[None], ByClient.empty(), model.part(self.features))

    def round(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """Local update from the own cluster's model, E-step, M-step."""
        if self.k == "auto":
            k = K(self.k).settled(state, self.local, cohort, ask)
            return dataclasses.replace(self, k=k).round(state, cohort, ask)
        first = not len(state.labels.ids)
        if not first:
            state = self.meet(state, cohort, ask)
        who = K(self.k).first_clients(self.alpha, cohort) if first else self.taking_part(state, cohort)
        reply = ask(Fit(state.start(who), local=self.local, on=None if who is cohort.ids else who))
        if first:
            K(self.k).enough_answers(reply.ids, cohort)
        labels, state = self.assign(reply, state, cohort)
        state = averaged(state, reply, labels, self.weigh(reply, self.weights))
        return assigned(state, reply.ids, labels)

    def weigh(self, reply: Fitted, how: Weighting) -> Tensor:
        """A weight per client that answered."""
        return weigh(reply, how)

    def meet(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """New clients of the cohort find their clusters before they train."""
        return admitted(self, state, cohort, ask)

    def taking_part(self, state: Clusters, cohort: Cohort) -> Tensor:
        """Those of the cohort that belong to a cluster."""
        met = state.labels.has(cohort.ids)
        return cohort.ids if bool(met.all()) else cohort.ids[met]

    def assign(self, reply: Fitted, state: Clusters, cohort: Cohort) -> tuple[Tensor, Clusters]:
        """The E-step: the cluster of each client that answered; the first one makes K centers out of one."""
        points, weights = state.represent(reply.models), self.weigh(reply, self.kmeans_weights)
        if len(state.labels.ids):
            return warm_kmeans(points, state.represent(state.centers), weights), state
        k = K(self.k).of(points, weights, cohort)
        labels = fresh_kmeans(points, k, weights, cohort.rng)
        return labels, dataclasses.replace(state, centers=state.centers.repeat(k, 1))

    def predictor(self, state: Clusters) -> Evaluate:
        """A client predicts with its cluster's model."""
        return state.predictor()

    def admit(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """A newcomer joins the center of least loss on its own data."""
        return joined_by_loss(state, cohort.ids, ask)
