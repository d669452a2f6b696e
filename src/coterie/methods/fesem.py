"""FeSEM: k-means over client models; the centroids are the cluster models.

Xie et al., Multi-Center Federated Learning, 2021 (Eq. 5-7): assign each client to the nearest center, replace
a center by the mean of its clients' models, send it to them, train locally, repeat.
The server sees every client's model (its `features` part decides the cluster).

`kmeans="warm"` (the paper's EM) goes on from the last round's centers, after k-means++ in the first round;
`"fresh"` is the WeCFL authors' code: a new k-means++ run each round, its clusters renumbered to the nearest old ones.
A client the server has not met starts from the mean of the centers and joins the nearest one after local steps.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.byclient import ByClient
from coterie.clustering import fresh_kmeans, match_labels, nearest, warm_kmeans
from coterie.domains import STRICT
from coterie.means import Weighting, mean_by, weigh
from coterie.methods.contract import Ask, enough_clients
from coterie.model import Model, Part
from coterie.tasks import All, Cohort, Evaluate, Fit, Fitted, Local, Pick, Roster


@dataclasses.dataclass(frozen=True, eq=False)
class Clusters:
    """K models and who belongs to which."""

    centers: Tensor  # (K, P)
    labels: ByClient  # of the clients met so far
    features: Tensor  # positions in a model that represent a client


@dataclass(frozen=True, config=STRICT)
class FeSEM:
    """k-means over client models; the centroids are the cluster models."""

    paper: ClassVar[str] = "Xie et al. 2021, arXiv:2005.01026"

    k: PositiveInt = 4
    local: Local = Local()
    features: Part = "all"  # what of a client's model is clustered
    kmeans: Literal["warm", "fresh"] = "warm"
    kmeans_weights: Weighting = "equal"  # of a client in the clustering
    weights: Weighting = "equal"  # of a client in its cluster's model

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Clusters:
        """All centers equal: clients part by what they learn from one common start."""
        start = model.init(rng).repeat(enough_clients(self.k, roster), 1)
        return Clusters(start, ByClient.empty(), model.part(self.features))

    def round(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """Local update from the own cluster's model, E-step, M-step."""
        unmet = self.k  # the row behind the centers: their mean
        start = Pick(
            torch.cat([state.centers, state.centers.mean(0, keepdim=True)]),
            ByClient(cohort.ids, state.labels.at(cohort.ids, default=unmet)),
        )
        reply = ask(Fit(start, local=self.local))
        if reply.theta is None:  # nobody answered
            return state
        labels = self.assign(reply, state, cohort.rng)
        centers = mean_by(labels, reply.theta, weigh(reply, self.weights), empty=state.centers)
        return dataclasses.replace(state, centers=centers, labels=state.labels.put(reply.ids, labels))

    def assign(self, reply: Fitted, state: Clusters, rng: np.random.Generator) -> Tensor:
        """The cluster of each client that answered."""
        points, old = reply.models[:, state.features], state.centers[:, state.features]
        weights = weigh(reply, self.kmeans_weights)
        first = not len(state.labels.ids)
        if self.kmeans == "warm" and not first:
            return warm_kmeans(points, old, weights)
        labels = fresh_kmeans(points, self.k, weights, rng)
        return labels if first else match_labels(points, labels, weights, old)

    def predictor(self, state: Clusters) -> Evaluate:
        """A client predicts with its cluster's model."""
        return Evaluate((Pick(state.centers, state.labels),))

    def admit(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """A newcomer trains from the mean of the centers and joins the nearest one."""
        unmet = cohort.ids[~state.labels.has(cohort.ids)]
        if not len(unmet):
            return state
        reply = ask(Fit(All(state.centers.mean(0)), local=self.local, on=unmet))
        if reply.theta is None:
            return state
        labels = nearest(reply.theta[:, state.features], state.centers[:, state.features])
        return dataclasses.replace(state, labels=state.labels.put(reply.ids, labels))
