"""StoCFL: an unknown number of clusters, found while sampling a few clients a round, and a global model that helps.

Zeng et al., Stochastic Clustered Federated Learning, 2023 (Algorithm 1). A client is represented once, by the gradient
of an anchor model on its data, Psi(D_i) (line 6). Everyone starts as a cluster of one; clusters whose mean
representations have a cosine above tau are merged (lines 9-16). Cluster models train with lambda/2 |theta - omega|^2
towards the global model omega, which is trained beside them (lines 18-25).
The server sees the single representations; after that, means are enough. The paper finds tau by trial, and one gradient
of few samples may not tell clients apart at any tau. With tau: auto, the default, two halves of each client's data say
what tau is, and 50 local steps represent a client, unless psi is given. A number is the paper's tau.

Only clients met so far take room: per cluster a model, a sum of representations and a count. A cluster that has not
trained yet has no say in a merged model, so that tau = -1, lambda = 0 is FedAvg under any participation.
The authors' code is `papers/methods/stocfl.py`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.clustering.linkage import greedy_merge
from coterie.clustering.similarity import cosines
from coterie.core.client_table import ByClient
from coterie.core.cohort import Cohort, Roster
from coterie.core.constructors import dataclass
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Pick
from coterie.core.replies import Fitted
from coterie.core.tasks import Evaluate, Fit
from coterie.core.types import STRICT, Cosine
from coterie.methods.contract import Ask, Releases
from coterie.methods.hard_clusters import averaged
from coterie.methods.stocfl_clusters import Stochastic, merged, with_singletons
from coterie.methods.stocfl_newcomers import joined_by_likeness, represented
from coterie.methods.stocfl_tau import chosen, representing, with_tau


@dataclass(frozen=True, config=STRICT)
class StoCFL:
    """An unknown number of clusters, any participation, and a global model that helps them."""

    paper: ClassVar[str] = "Zeng et al. 2023, arXiv:2303.00897"
    releases: ClassVar[Releases | str] = "it compares single full gradients of clients, in every round"
    tau: Cosine | Literal["auto"] = "auto"  # clusters more alike than this merge, newcomers join; 1 never, -1 always
    lam: NonNegativeFloat = 0.05  # lambda, the pull towards the global model
    psi: Local | None = None  # how a client is represented; not given: the anchor's gradient or, tau: auto, 50 steps
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Stochastic:
        """omega_0 = theta_1 = ... = theta_N, stored once; no client has been met."""
        omega, features = model.init(rng), model.part("all")
        none, nobody = omega.new_empty(0, len(features)), omega.new_empty(0)
        return Stochastic(
            omega.new_empty(0, len(omega)), ByClient.empty(), features, omega, omega, none, nobody, nobody
        )

    def round(self, state: Stochastic, cohort: Cohort, ask: Ask) -> Stochastic:
        """Represent, merge, train cluster models and the global one, average."""
        state = self.cluster(state, cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        start, omega = Pick(state.centers, state.labels), All(state.omega)
        fit = Fit(start, anchor=omega, mu=self.lam, local=self.local, on=met)
        shared = Fit(omega, local=self.local, optimizer_slot="stocfl.global", on=met)
        reply, new_omega = self.train(fit, shared, state.omega, ask)
        state = averaged(state, reply, reply.chosen, weigh(reply, self.weights))
        trained = state.trained.index_copy(0, reply.chosen, state.members[reply.chosen])
        return dataclasses.replace(state, trained=trained, omega=new_omega)

    def train(self, fit: Fit, shared: Fit, omega: Tensor, ask: Ask) -> tuple[Fitted, Tensor]:
        """Lines 18-25, in one visit: trained cluster models, and the mean of the trained global ones."""
        reply, fitted = ask([fit, shared])
        return reply, mean(fitted, weigh(fitted, self.weights), empty=omega)

    def cluster(self, state: Stochastic, cohort: Cohort, ask: Ask) -> Stochastic:
        """Lines 6-16: the unmet are clusters of one; clusters more alike than tau become one, the lowest number."""
        psi = representing(self.psi, self.tau, self.local)
        state = with_tau(state, self.tau, psi, cohort, ask)
        parts = with_singletons(state, *represented(state, cohort.ids, psi, ask))
        into = greedy_merge(cosines(parts.psi), chosen(state, self.tau)) if len(parts.psi) else torch.arange(0)
        if torch.equal(into, torch.arange(len(state.centers))):  # nobody is new, nothing merged
            return state
        return merged(parts, into, begin=state.anchor)

    def predictor(self, state: Stochastic) -> Evaluate:
        """A client predicts with its cluster's model (before anyone was met: with the global one)."""
        return state.predictor() if len(state.centers) else Evaluate((All(state.omega),))

    def admit(self, state: Stochastic, cohort: Cohort, ask: Ask) -> Stochastic:
        """A newcomer joins the cluster it is most like, if like enough; else it is one of its own, with that model."""
        if not len(state.centers):
            return self.cluster(state, cohort, ask)
        ids, psi = represented(state, cohort.ids, representing(self.psi, self.tau, self.local), ask)
        return joined_by_likeness(state, ids, psi, chosen(state, self.tau), ask)
