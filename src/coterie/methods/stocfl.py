"""StoCFL: an unknown number of clusters, found while sampling a few clients a round, and a global model that helps.

Zeng et al., Stochastic Clustered Federated Learning, 2023 (Algorithm 1). A client is represented once, by the gradient
of an anchor model on its data, Psi(D_i) (line 6). Everyone starts as a cluster of one; clusters whose mean
representations have a cosine above tau are merged (lines 9-16). Cluster models train with lambda/2 |theta - omega|^2
towards the global model omega, which is trained beside them (lines 18-25).
The server sees the single representations; after that, means are enough. A gradient of few samples may not tell
clients apart: with 50 images each, four rotations became one cluster; after ten epochs (psi below) they did not.

Only clients met so far take room: per cluster a model, a sum of representations and a count. A cluster that has not
trained yet has no say in a merged model, so that tau = -1, lambda = 0 is FedAvg under any participation.
Options from the authors' code: psi: {epochs: 10}, global_update: chain (client after client, the snapshots averaged),
cluster_vector: sampled, merge_model: larger, new_cluster: global, weights: equal.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.byclient import ByClient
from coterie.clustering import by_first_member, cosines, greedy_merge, merge_recomputing
from coterie.domains import STRICT, Cosine
from coterie.means import Weighting, mean, mean_by, weigh
from coterie.methods.clusters import Clusters, assigned, averaged
from coterie.methods.contract import Ask
from coterie.model import Model
from coterie.rows import Rows
from coterie.tasks import All, Cohort, Evaluate, Fit, Local, Pick, Roster

GRADIENT = Local(epochs=1, batch="full", lr=1.0)  # one step of it moves a model by minus its gradient


@dataclasses.dataclass(frozen=True, eq=False)
class Stochastic(Clusters):
    """Clusters of those met so far, what represents them, and the global model."""

    omega: Tensor  # (P,) the global model
    anchor: Tensor  # (P,) psi = omega_0: what representations are taken from and clusters start at
    psi: Tensor  # (K, d) sum of the members' representations
    members: Tensor  # (K,) how many there are
    trained: Tensor  # (K,) how many of them have had a part in the model
    seen: Rows  # every single representation, kept only for cluster_vector="sampled"


@dataclass(frozen=True, config=STRICT)
class StoCFL:
    """An unknown number of clusters, any participation, and a global model that helps them."""

    paper: ClassVar[str] = "Zeng et al. 2023, arXiv:2303.00897"

    tau: Cosine = 0.5  # clusters more alike than this are merged; 1 never, -1 always
    lam: NonNegativeFloat = 0.05  # lambda, the pull towards the global model
    psi: Local | None = None  # how a client is represented; the gradient of the anchor when not given
    global_update: Literal["parallel", "chain"] = "parallel"
    cluster_vector: Literal["all_members", "sampled"] = "all_members"
    merge_model: Literal["mean", "larger"] = "mean"
    recompute_after_merge: bool = False  # whether a merged cluster's likeness is looked at anew within the round
    new_cluster: Literal["anchor", "global"] = "anchor"  # the model a cluster of one begins with
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Stochastic:
        """omega_0 = theta_1 = ... = theta_N, stored once; no client has been met."""
        omega, features = model.init(rng), model.part("all")
        none, nobody = omega.new_empty(0, len(features)), omega.new_empty(0)
        centers = omega.new_empty(0, len(omega))
        return Stochastic(centers, ByClient.empty(), features, omega, omega, none, nobody, nobody, Rows.empty())

    def round(self, state: Stochastic, cohort: Cohort, ask: Ask) -> Stochastic:
        """Represent, merge, and train cluster models and the global one in one visit."""
        state = self.cluster(state, cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        start = Pick(state.centers, state.labels)
        fit = Fit(start, anchor=All(state.omega), mu=self.lam, local=self.local, on=met)
        shared = Fit(All(state.omega), local=self.local, optimizer_slot="stocfl.global", on=met)
        if self.global_update == "parallel":
            reply, fitted = ask([fit, shared])
            omega = mean(fitted, weigh(fitted, self.weights), empty=state.omega)
        else:
            reply, omega = ask(fit), self.chain(state.omega, shared, met, ask)
        if reply.choice is not None:
            state = averaged(state, reply, reply.choice, weigh(reply, self.weights))
            trained = state.trained.index_copy(0, reply.choice, state.members[reply.choice])
            state = dataclasses.replace(state, trained=trained)
        return dataclasses.replace(state, omega=omega)

    def represent(self, state: Stochastic, who: Tensor, ask: Ask) -> tuple[Tensor, Tensor]:
        """Line 6: what stands for those of these clients that were not met before, and their ids."""
        unmet = state.unmet(who)
        reply = ask(Fit(All(state.anchor), local=self.psi or GRADIENT, on=unmet)) if len(unmet) else None
        if reply is None or reply.theta is None:
            return unmet[:0], state.psi[:0]
        return reply.ids, state.represent(state.anchor - reply.theta)

    def cluster(self, state: Stochastic, cohort: Cohort, ask: Ask) -> Stochastic:
        """Lines 6-16: the unmet are clusters of one; clusters more alike than tau become one, the lowest number."""
        ids, psi = self.represent(state, cohort.ids, ask)
        old, new = len(state.centers), len(ids)
        parts = dataclasses.replace(  # their models are not written down before it is known which are needed
            state,
            labels=state.labels.put(ids, torch.arange(old, old + new)),
            psi=torch.cat([state.psi, psi]),
            members=torch.cat([state.members, torch.ones(new)]),
            trained=torch.cat([state.trained, torch.zeros(new)]),
            seen=state.seen.put(ids, psi) if self.cluster_vector == "sampled" else state.seen,
        )
        into = self.merge(parts, cohort.ids)
        if torch.equal(into, torch.arange(old)):  # nobody is new, nothing merged
            return state
        k = int(into.max()) + 1
        # The largest part that has trained, the lowest number where they tie.
        order = torch.argsort(parts.trained, descending=True, stable=True)
        best = [int(order[into[order] == j][0]) for j in range(k)]
        begin = state.anchor if self.new_cluster == "anchor" else state.omega
        centers = torch.stack([state.centers[row] if row < old else begin for row in best])
        if self.merge_model == "mean":
            centers = mean_by(into[:old], state.centers, state.trained, empty=centers)
        sums, members, trained = (
            torch.zeros(k, *t.shape[1:], dtype=t.dtype).index_add_(0, into, t)
            for t in (parts.psi, parts.members, parts.trained)
        )
        labels = ByClient(parts.labels.ids, into[parts.labels.values])
        return dataclasses.replace(parts, centers=centers, labels=labels, psi=sums, members=members, trained=trained)

    def merge(self, state: Stochastic, sampled: Tensor) -> Tensor:
        """Lines 9-16: what each cluster becomes a part of."""
        psi, rows = state.psi, torch.arange(len(state.psi))
        if self.cluster_vector == "sampled":  # clusters nobody stands for this round are left alone
            here = sampled[state.labels.has(sampled)]
            of = state.labels.at(here)
            psi, rows = state.seen.sums(here, of, len(psi), psi), of.unique()
        into = torch.arange(len(psi))
        if len(rows) < 2:
            return into
        psi = psi if len(rows) == len(psi) else psi[rows]
        merged = (
            merge_recomputing(psi, state.members[rows], self.tau)
            if self.recompute_after_merge
            else greedy_merge(cosines(psi), self.tau)
        )
        into[rows] = torch.stack([rows[merged == m][0] for m in merged])  # the lowest number of each
        return by_first_member(into)

    def chain(self, omega: Tensor, shared: Fit, met: Tensor, ask: Ask) -> Tensor:
        """The authors' code: each client goes on from the last one's result; the mean of all these."""
        last, total, many = omega, torch.zeros_like(omega, dtype=torch.float64), 0
        for client in met.split(1):
            reply = ask(dataclasses.replace(shared, start=All(last), on=client))
            if reply.theta is not None:
                last, many = reply.theta[0], many + 1
                total += last
        return (total / many).to(omega.dtype) if many else omega

    def predictor(self, state: Stochastic) -> Evaluate:
        """A client predicts with its cluster's model (before anyone was met: with the global one)."""
        return state.predictor() if len(state.centers) else Evaluate((All(state.omega),))

    def admit(self, state: Stochastic, cohort: Cohort, ask: Ask) -> Stochastic:
        """A newcomer joins the cluster it is most like, if like enough; else it is one of its own, with that model."""
        if not len(state.centers):
            return self.cluster(state, cohort, ask)
        ids, psi = self.represent(state, cohort.ids, ask)
        if not len(ids):
            return state
        alike, closest = cosines(psi, state.psi).max(1)
        alone = alike < self.tau
        first = len(state.centers)
        labels = torch.where(alone, first + alone.cumsum(0) - 1, closest)
        members = torch.cat([state.members, torch.zeros(int(alone.sum()))])
        sums = torch.cat([state.psi, torch.zeros_like(psi[alone])])
        state = dataclasses.replace(
            state,
            centers=torch.cat([state.centers, state.centers[closest[alone]]]),
            psi=sums.index_add(0, labels, psi),
            members=members.index_add(0, labels, torch.ones(len(labels))),
            trained=torch.cat([state.trained, state.trained[closest[alone]].clamp(max=1)]),
            seen=state.seen.put(ids, psi) if self.cluster_vector == "sampled" else state.seen,
        )
        return assigned(state, ids, labels)
