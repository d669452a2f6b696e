"""FeSEM: k-means over client models; the centroids are the cluster models.

Xie et al., Multi-Center Federated Learning, 2021 (Eq. 5-7): assign each client to the nearest center, replace
a center by the mean of its clients' models, send it to them, train locally, repeat.
The server sees every client's model (its `features` part decides the cluster).

`kmeans="warm"` (the paper's EM) goes on from the last round's centers, after k-means++ in the first round;
`"fresh"` is the WeCFL authors' code: a new k-means++ run each round, its clusters renumbered to the old ones.
Both papers have everyone take part. Where few do, the first clustering sees more of them than the round's cohort
(`alpha`, as in FedGroup): out of a handful of clients k-means cannot tell the kinds.
A client the server has not met starts from the mean of the centers and joins the nearest one after local steps.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.byclient import ByClient
from coterie.clustering import fresh_kmeans, match_labels, nearest, warm_kmeans
from coterie.domains import STRICT
from coterie.means import Weighting, weigh
from coterie.methods.clusters import Clusters, assigned, averaged
from coterie.methods.contract import Ask
from coterie.methods.counting import MOST, ClusterCount, count, enough_clients, wait_for_enough
from coterie.model import Model, Part
from coterie.tasks import All, Cohort, Evaluate, Fit, Fitted, Local, Roster


@dataclass(frozen=True, config=STRICT)
class FeSEM:
    """k-means over client models; the centroids are the cluster models."""

    paper: ClassVar[str] = "Xie et al. 2021, arXiv:2005.01026"

    k: ClusterCount = 4
    local: Local = Local()
    features: Part = "all"  # what of a client's model is clustered
    kmeans: Literal["warm", "fresh"] = "warm"
    kmeans_weights: Weighting = "equal"  # of a client in the clustering
    weights: Weighting = "equal"  # of a client in its cluster's model
    size_unit: Literal["samples", "batches"] = "samples"  # what a size counts; the WeCFL authors' code of 2022: batches
    alpha: NonNegativeInt = 20  # the first clustering asks at least alpha * k clients, if there are that many

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Clusters:
        """One common start: clients part by what they learn from it."""
        enough_clients(self.k, roster)
        return Clusters(model.init(rng)[None], ByClient.empty(), model.part(self.features))

    def round(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """Local update from the own cluster's model, E-step, M-step."""
        who = cohort.ids if len(state.labels.ids) else self.first_clients(cohort)
        reply = ask(Fit(state.start(who), local=self.local, on=None if who is cohort.ids else who))
        if reply.theta is None:  # nobody answered
            return state
        labels, state = self.assign(reply, state, cohort.rng)
        state = averaged(state, reply, labels, self.weigh(reply, self.weights))
        return assigned(state, reply.ids, labels)

    def weigh(self, reply: Fitted, how: Weighting) -> Tensor:
        """A weight per client that answered."""
        if how == "equal" or self.size_unit == "samples":
            return weigh(reply, how)
        batch = self.local.batch
        return torch.ones(len(reply.n)).double() if batch == "full" else (reply.n.double() / batch).ceil()

    def first_clients(self, cohort: Cohort) -> Tensor:
        """The cohort and, where it is small, others drawn at random: k-means needs to see every kind."""
        wait_for_enough(self.k, cohort)
        wanted = 0 if self.k == 1 else self.alpha * (self.k if isinstance(self.k, int) else MOST)
        others = cohort.roster.ids[~torch.isin(cohort.roster.ids, cohort.ids)]
        more = min(wanted - len(cohort.ids), len(others))
        if more <= 0:
            return cohort.ids
        drawn = torch.from_numpy(cohort.rng.choice(len(others), more, replace=False))
        return torch.cat([cohort.ids, others[drawn]]).sort().values

    def assign(self, reply: Fitted, state: Clusters, rng: np.random.Generator) -> tuple[Tensor, Clusters]:
        """The E-step: the cluster of each client that answered; the first one makes K centers out of one."""
        points, weights = state.represent(reply.models), self.weigh(reply, self.kmeans_weights)
        if not len(state.labels.ids):
            k = count(points, self.k, weights, rng)
            labels = fresh_kmeans(points, k, weights, rng)
            return labels, dataclasses.replace(state, centers=state.centers.repeat(k, 1))
        old = state.represent(state.centers)
        if self.kmeans == "warm":
            return warm_kmeans(points, old, weights), state
        labels = fresh_kmeans(points, len(old), weights, rng)
        used, here = state.labels.values.unique(), state.labels.at(reply.ids, default=-1)
        return match_labels(points, labels, weights, old, absent=used[~torch.isin(used, here)]), state

    def predictor(self, state: Clusters) -> Evaluate:
        """A client predicts with its cluster's model."""
        return state.predictor()

    def admit(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """A newcomer trains from the mean of the centers and joins the nearest one."""
        unmet = state.unmet(cohort.ids)
        if not len(unmet):
            return state
        reply = ask(Fit(All(state.centers.mean(0)), local=self.local, on=unmet))
        if reply.theta is None:
            return state
        labels = nearest(state.represent(reply.theta), state.represent(state.centers))
        return assigned(state, reply.ids, labels)
