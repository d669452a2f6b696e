"""FedGroup: groups found once, by what clients learn from a common start; then FedAvg in each.

Duan et al., FedGroup: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure, 2021 (Alg. 2, 3).
Group cold start: alpha * m clients are pre-trained from w0; their updates are clustered by EDC (truncated SVD, cosine
with the m directions, k-means++) or by MADC (complete linkage). A group starts at w0 + mean update (line 16 as printed
would leave w0 out). Client cold start (Eq. 9): any other client joins the group of the most similar update.
Inter-group aggregation (line 18) with eta_g.
FedGrouProx is FedGroup whose members minimise their loss + mu/2 |w - w_group|^2.
The server sees the single updates of the cold start; after that, means are enough.
The authors' code is `papers/methods/fedgroup.py`; the ablations RCC and RAC are there, too.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.nn import functional

from coterie.clustering.averaging import Weighting, mean_by, weigh
from coterie.clustering.kmeans import by_first_member, fresh_kmeans
from coterie.clustering.linkage import agglomerate
from coterie.clustering.similarity import edc_features, madc
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Pick
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import Evaluate, Fit
from coterie.methods.contract import Ask, Releases, admitted
from coterie.methods.hard_clusters import Clusters, assigned, averaged, by_angle
from coterie.methods.k import ClusterCount, K


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
        """Algorithm 2, line 18: w_j + eta_g * sum over the other groups of w_l / |w_l|. Running statistics stay."""
        if not eta_g:
            return self
        units = functional.normalize(self.represent(self.centers))
        others = eta_g * (units.sum(0) - units)
        return dataclasses.replace(self, centers=self.centers.index_add(1, self.features, others))


@dataclass(frozen=True, config=STRICT)
class FedGroup:
    """Groups found once, by decomposed cosine similarity of first updates; then FedAvg in each."""

    paper: ClassVar[str] = "Duan et al. 2021, arXiv:2010.06870"
    releases: ClassVar[Releases | str] = "it groups by an SVD of single updates"

    k: ClusterCount = 3  # m, the number of groups
    alpha: PositiveInt = 20  # the group cold start pre-trains alpha * m clients
    grouping: Literal["edc", "madc"] = "edc"
    eta_g: NonNegativeFloat = 0.0  # inter-group learning rate
    pretrain: Local | None = None  # how clients are pre-trained; like `local` when not given
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Groups:
        """w0; the groups come with the first round."""
        K(self.k).check(roster)
        return Groups.none(model.init(rng), model.part("all"))

    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """Cold starts, then an update within each group, then between them."""
        if self.k == "auto":
            k = K(self.k).settled(state, self.local, cohort, ask)
            return dataclasses.replace(self, k=k).round(state, cohort, ask)
        if not len(state.updates):
            state = self.group_cold_start(state, cohort, ask)
        state = self.meet(state, cohort, ask)
        reply = ask(self.fit(state, cohort.ids[state.labels.has(cohort.ids)]))
        return averaged(state, reply, reply.chosen, weigh(reply, self.weights)).between(self.eta_g)

    def meet(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """Client cold start: a new client joins a group before it trains."""
        return admitted(self, state, cohort, ask)

    def fit(self, state: Groups, on: Tensor) -> Fit:
        """A member's training, from its group's model."""
        return Fit(Pick(state.centers, state.labels), local=self.local, on=on)

    def probe(self, state: Groups, on: Tensor) -> Fit:
        """A pre-training, which only measures a client's first update."""
        return Fit(All(state.w0), local=self.pretrain or self.local, keep=False, on=on)

    def group_cold_start(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """Algorithm 3. A group starts at the unweighted mean of its members' models, w0 + mean update (line 16)."""
        K(self.k).wait_for_enough(cohort)
        everyone = cohort.roster.ids
        many = min(self.alpha * (self.k if isinstance(self.k, int) else 4), len(everyone))
        drawn = np.sort(cohort.rng.choice(len(everyone), many, replace=False))
        reply = ask(self.probe(state, everyone[torch.from_numpy(drawn)]))
        K(self.k).enough_answers(reply.ids, cohort)
        labels = self.cluster(state.represent(reply.models - state.w0), cohort)
        rows = state.w0.repeat(int(labels.max()) + 1, 1)
        centers = mean_by(labels, reply, torch.ones(len(labels)), empty=rows)
        updates = state.represent(centers - state.w0)
        groups = dataclasses.replace(state, centers=centers, updates=updates, clustered=reply.ids)
        return assigned(groups, reply.ids, labels)

    def cluster(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """Which of the pre-trained clients belong together, by EDC or MADC."""
        equal = torch.ones(len(updates), dtype=torch.float64)
        m = K(self.k).of(functional.normalize(updates), equal, cohort)
        if self.grouping == "madc":
            return agglomerate(madc(updates), k=m, linkage="complete")
        return by_first_member(fresh_kmeans(edc_features(updates, m), m, equal, cohort.rng))

    def predictor(self, state: Groups) -> Evaluate:
        """A client predicts with its group's model (before there are groups: with w0)."""
        return state.predictor() if len(state.updates) else Evaluate((All(state.w0),))

    def admit(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """Eq. 9: pre-train from w0 and join the group with the most similar update."""
        unmet = state.unmet(cohort.ids)
        if not len(state.updates) or not len(unmet):
            return state
        reply = ask(self.probe(state, unmet))
        return by_angle(state, reply.ids, state.represent(reply.models - state.w0), state.updates, ask)


@dataclass(frozen=True, config=STRICT)
class FedGrouProx(FedGroup):
    """FedGroup whose clients are held near their group's model by a proximal term (section IV)."""

    mu: NonNegativeFloat = 1.0

    def fit(self, state: Groups, on: Tensor) -> Fit:
        """A member's training, held near its group's model."""
        group = Pick(state.centers, state.labels)
        return Fit(group, anchor=group, mu=self.mu, local=self.local, on=on)
