"""FedGroup: groups found once, by what clients learn from a common start; then FedAvg in each.

Duan et al., FedGroup: Efficient Clustered Federated Learning via Decomposed Data-Driven Measure, 2021 (Alg. 2, 3).
Group cold start: alpha * m clients are pre-trained from w0; their updates are clustered by EDC (truncated SVD, cosine
with the m directions, k-means++) or by MADC (complete linkage). A group starts at w0 + mean update (line 16 as printed
would leave w0 out). Client cold start (Eq. 9): any other client joins the group of the most similar update.
Inter-group aggregation (line 18) with eta_g.
The server sees the single updates of the cold start; after that, means are enough.
The authors' code is `papers/methods/fedgroup.py`; the ablations RCC and RAC are there, too.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from coterie.clustering.averaging import Weighting, weigh
from coterie.core.cohort import Cohort, Roster
from coterie.core.constructors import dataclass
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Pick
from coterie.core.tasks import Evaluate, Fit
from coterie.core.types import STRICT
from coterie.methods.cluster_count import ClusterCount, enough_answers, enough_clients, wait_for_enough
from coterie.methods.contract import Ask, Releases, admitted
from coterie.methods.count_by_halves import counts_by_halves
from coterie.methods.fedgroup_cold_start import Grouping, Groups, alike, grouped
from coterie.methods.hard_clusters import averaged, by_angle


@counts_by_halves
@dataclass(frozen=True, config=STRICT)
class FedGroup:
    """Groups found once, by decomposed cosine similarity of first updates; then FedAvg in each."""

    paper: ClassVar[str] = "Duan et al. 2021, arXiv:2010.06870"
    releases: ClassVar[Releases | str] = "it groups by an SVD of single updates"

    k: ClusterCount = 3  # m, the number of groups
    alpha: PositiveInt = 20  # the group cold start pre-trains alpha * m clients
    grouping: Grouping = "edc"
    eta_g: NonNegativeFloat = 0.0  # inter-group learning rate
    pretrain: Local | None = None  # how clients are pre-trained; like `local` when not given
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Groups:
        """w0; the groups come with the first round."""
        enough_clients(self.k, roster)
        return Groups.none(model.init(rng), model.part("all"))

    def round(self, state: Groups, cohort: Cohort, ask: Ask) -> Groups:
        """Cold starts, then an update within each group, then between them."""
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
        """Algorithm 3."""
        wait_for_enough(self.k, cohort)
        everyone = cohort.roster.ids
        many = min(self.alpha * (self.k if isinstance(self.k, int) else 4), len(everyone))
        drawn = np.sort(cohort.rng.choice(len(everyone), many, replace=False))
        reply = ask(self.probe(state, everyone[torch.from_numpy(drawn)]))
        enough_answers(self.k, reply.ids, cohort)
        return grouped(state, reply, self.cluster(state.represent(reply.models - state.w0), cohort))

    def cluster(self, updates: Tensor, cohort: Cohort) -> Tensor:
        """Which of the pre-trained clients belong together."""
        return alike(updates, self.k, self.grouping, cohort)

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
