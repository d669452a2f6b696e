"""FedGroup and FedGrouProx: groups found once, by what clients learn from a common start; FedAvg (FedProx) in each.

Duan et al., FedGroup: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure, 2021 (Alg. 2, 3).
Group cold start: alpha * m clients are pre-trained from w0; their updates are clustered by EDC (truncated SVD, cosine
with the m directions, k-means++) or by MADC (complete linkage). A group starts at w0 + mean update (line 16 as printed
would leave w0 out). Client cold start (Eq. 9): anyone else joins the group whose update is most alike, and stays.
Inter-group aggregation (line 18) with eta_g.
The server sees the single updates of the cold start; after that, means are enough.

Ablations: "rcc" makes the groups of m random clients; "rac" puts clients that were not clustered into a random group
each time they are selected. The authors' code is pretrain: {steps: 50, batch: 10}, cold_start: all_before.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from coterie.byclient import ByClient
from coterie.clustering import agglomerate, by_first_member, cosines, edc_features, fresh_kmeans, madc
from coterie.domains import STRICT
from coterie.means import Weighting, mean_by, weigh
from coterie.methods.clusters import Clusters, assigned, averaged
from coterie.methods.contract import Ask
from coterie.methods.counting import ClusterCount, count, enough_clients, wait_for_enough
from coterie.model import Model
from coterie.tasks import All, Cohort, Evaluate, Fit, Local, Pick, Roster


@dataclasses.dataclass(frozen=True, eq=False)
class Groups(Clusters):
    """Groups, their first updates, and the model everyone is measured from. One group without updates: not begun."""

    w0: Tensor  # (P,)
    updates: Tensor  # (m, d), or (0, d) before the cold start
    clustered: Tensor  # ids of those who made the groups


@dataclass(frozen=True, config=STRICT)
class FedGroup:
    """Groups found once, by decomposed cosine similarity of first updates; then FedAvg in each."""

    paper: ClassVar[str] = "Duan et al. 2021, arXiv:2010.06870"

    k: ClusterCount = 3  # m, the number of groups
    alpha: PositiveInt = 20  # the group cold start pre-trains alpha * m clients
    grouping: Literal["edc", "madc", "rcc", "rac"] = "edc"
    eta_g: NonNegativeFloat = 0.0  # inter-group learning rate
    pretrain: Local | None = None  # how clients are pre-trained; like `local` when not given
    cold_start: Literal["on_selection", "all_before"] = "on_selection"  # when the rest joins a group
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Groups:
        """w0; the groups come with the first round."""
        enough_clients(self.k, roster)
        w0, features = model.init(rng), model.part("all")
        nobody = torch.empty(0, dtype=torch.int64)
        return Groups(w0[None], ByClient.empty(), features, w0, w0.new_empty(0, len(features)), nobody)

    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """Cold starts, then an update within each group, then between them."""
        if not len(state.updates):
            state = self.group_cold_start(state, cohort, ask)
            if not len(state.updates):  # nobody answered
                return state
            if self.cold_start == "all_before" and self.grouping != "rac":
                state = self.admit(state, dataclasses.replace(cohort, ids=cohort.roster.ids), ask)
        if self.grouping != "rac":
            state = self.admit(state, cohort, ask)
        else:
            others = cohort.ids[~torch.isin(cohort.ids, state.clustered)]
            state = assigned(state, others, torch.from_numpy(cohort.rng.integers(len(state.centers), size=len(others))))
        reply = ask(self.fit(state, cohort.ids[state.labels.has(cohort.ids)]))
        if reply.choice is None:
            return state
        return self.between(averaged(state, reply, reply.choice, weigh(reply, self.weights)))

    def fit(self, state: Groups, on: Tensor) -> Fit:
        """A member's training, from its group's model."""
        return Fit(Pick(state.centers, state.labels), local=self.local, on=on)

    def group_cold_start(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """Algorithm 3."""
        wait_for_enough(self.k, cohort)
        everyone = cohort.roster.ids
        m = self.k if isinstance(self.k, int) else 4
        many = min(m if self.grouping == "rcc" else self.alpha * m, len(everyone))
        drawn = np.sort(cohort.rng.choice(len(everyone), many, replace=False))
        reply = ask(Fit(All(state.w0), local=self.pretrain or self.local, on=everyone[torch.from_numpy(drawn)]))
        if reply.theta is None:
            return state
        updates = state.represent(reply.theta - state.w0)
        labels = self.cluster(updates, cohort.rng)
        rows = state.w0.repeat(int(labels.max()) + 1, 1)
        centers = mean_by(labels, reply.theta, torch.ones(len(labels)), empty=rows)  # unweighted: line 16
        groups = dataclasses.replace(
            state, centers=centers, updates=state.represent(centers - state.w0), clustered=reply.ids
        )
        return assigned(groups, reply.ids, labels)

    def cluster(self, updates: Tensor, rng: np.random.Generator) -> Tensor:
        """Which of the pre-trained clients belong together."""
        if self.grouping == "rcc":
            return torch.arange(len(updates))
        equal = torch.ones(len(updates), dtype=torch.float64)
        m = count(functional.normalize(updates), self.k, equal, rng)
        if self.grouping == "madc":
            return agglomerate(madc(updates), k=m, linkage="complete")
        return by_first_member(fresh_kmeans(edc_features(updates, m), m, equal, rng))

    def between(self, state: Groups) -> Groups:
        """Line 18: w_j + eta_g * sum over the other groups of w_l / |w_l|."""
        if not self.eta_g:
            return state
        units = functional.normalize(state.centers)
        return dataclasses.replace(state, centers=state.centers + self.eta_g * (units.sum(0) - units))

    def predictor(self, state: Groups) -> Evaluate:
        """A client predicts with its group's model (before there are groups: with w0)."""
        return state.predictor() if len(state.updates) else Evaluate((All(state.w0),))

    def admit(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """Eq. 9: pre-train from w0 and join the group whose update is most alike."""
        unmet = state.unmet(cohort.ids)
        if not len(state.updates) or not len(unmet):
            return state
        reply = ask(Fit(All(state.w0), local=self.pretrain or self.local, on=unmet))
        if reply.theta is None:
            return state
        alike = cosines(state.represent(reply.theta - state.w0), state.updates)
        return assigned(state, reply.ids, alike.argmax(1))


@dataclass(frozen=True, config=STRICT)
class FedGrouProx(FedGroup):
    """FedGroup whose clients are held near their group's model by a proximal term."""

    mu: NonNegativeFloat = 1.0

    def fit(self, state: Groups, on: Tensor) -> Fit:
        """A member's training, held near its group's model."""
        group = Pick(state.centers, state.labels)
        return Fit(group, anchor=group, mu=self.mu, local=self.local, on=on)
