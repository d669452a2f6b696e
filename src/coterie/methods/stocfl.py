"""StoCFL: an unknown number of clusters, found while sampling a few clients a round, and a global model that helps.

Zeng et al., Stochastic Clustered Federated Learning, 2023 (Algorithm 1). A client is represented once, by the gradient
of an anchor model on its data, Psi(D_i) (line 6). Everyone starts as a cluster of one; clusters whose mean
representations have a cosine above tau are merged (lines 9-16). Cluster models train with lambda/2 |theta - omega|^2
towards the global model omega, which is trained beside them (lines 18-25).
The server sees the single representations; after that, means are enough. The paper finds tau by trial, and one gradient
of few samples may not tell clients apart at any tau. With tau: auto, the default, two halves of each client's data say
what tau is, and 50 local steps represent a client, unless psi is given. A number is the paper's tau.
When the first clients are met, up to 240, the round's and others, are represented three times: by all their samples and
by either half. The halves say which of these clients belong together (see `clustering.halves`). Of the values of tau
on a grid, that one is taken with which StoCFL's own rule, merging whatever is more alike than tau, comes closest to it
on the whole representations; where several do alike, the middle one.

Only clients met so far take room: per cluster a model, a sum of representations and a count. A cluster that has not
trained yet has no say in a merged model, so that tau = -1, lambda = 0 is FedAvg under any participation.
The authors' code is `papers/methods/stocfl.py`.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal, TypeVar

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, mean_by, weigh
from coterie.clustering.halves import SHOWN, halves_evidence
from coterie.clustering.linkage import greedy_merge
from coterie.clustering.similarity import cosines
from coterie.core.errors import NoAnswerError
from coterie.core.local import GRADIENT, Local
from coterie.core.model import Model
from coterie.core.references import All, Pick
from coterie.core.settings import STRICT, Cosine, dataclass
from coterie.core.tables import ByClient, Cohort, Counted, Roster
from coterie.core.tasks import Evaluate, Fit, Fitted
from coterie.methods.contract import Ask, Releases
from coterie.methods.hard_clusters import Clusters, assigned, averaged, least_loss
from coterie.methods.k import ASKED, LOOK, SKETCH, at_least

S = TypeVar("S", bound="Stochastic")


@dataclasses.dataclass(frozen=True, eq=False)
class Stochastic(Clusters):
    """Clusters of those met so far, what represents them, and the global model."""

    omega: Tensor  # (P,) the global model
    anchor: Tensor  # (P,) psi = omega_0: what representations are taken from and clusters start at
    psi: Tensor  # (K, d) sum of the members' representations
    members: Tensor  # (K,) how many there are
    trained: Tensor  # (K,) how many of them have had a part in the model
    tau: float | None = dataclasses.field(default=None, kw_only=True)  # None: not chosen yet

    def measured_from(self) -> Tensor:
        """The anchor, on which everyone is represented."""
        return self.anchor[None]

    def forget(self: S, ids: Tensor) -> S:
        """Without these clients in the counts, and without what stood for clusters that were theirs alone."""
        theirs = self.labels.only(ids).values
        members = self.members.index_add(0, theirs, -torch.ones(len(theirs), dtype=self.members.dtype)).clamp(min=0)
        psi = self.psi.index_fill(0, self.only_of(ids), 0)
        state = super().forget(ids)
        return dataclasses.replace(state, members=members, psi=psi, trained=torch.minimum(self.trained, members))

    def noting(self: S, ids: Tensor, psi: Tensor) -> S:
        """The state after these clients were represented so: nothing but the sums is kept."""
        return self


def with_singletons(state: S, ids: Tensor, psi: Tensor) -> S:
    """Each of these clients is a cluster of one. Their models are not written down before it is known who merges."""
    old, new = len(state.centers), len(ids)
    parts = dataclasses.replace(
        state,
        labels=state.labels.put(ids, torch.arange(old, old + new)),
        psi=torch.cat([state.psi, psi]),
        members=torch.cat([state.members, torch.ones(new)]),
        trained=torch.cat([state.trained, torch.zeros(new)]),
    )
    return parts.noting(ids, psi)


def merged(parts: S, into: Tensor, begin: Tensor, average: bool = True) -> S:
    """Clusters become what `into` says. The model is the mean of the parts that have trained, or that of the largest.

    begin: the model of clusters that have none yet; `centers` of the parts has rows for those that do.
    """
    old, k = len(parts.centers), int(into.max()) + 1
    # The largest part that has trained, the lowest number where they tie.
    order = torch.argsort(parts.trained, descending=True, stable=True)
    best = [int(order[into[order] == j][0]) for j in range(k)]
    centers = torch.stack([parts.centers[row] if row < old else begin for row in best])
    if average:
        centers = mean_by(into[:old], parts.centers, parts.trained[:old], empty=centers)
    sums, members, trained = (
        torch.zeros(k, *t.shape[1:], dtype=t.dtype).index_add_(0, into, t)
        for t in (parts.psi, parts.members, parts.trained)
    )
    labels = ByClient(parts.labels.ids, into[parts.labels.values])
    return dataclasses.replace(parts, centers=centers, labels=labels, psi=sums, members=members, trained=trained)


GRID = [-1.0, *(i / 50 for i in range(-10, 50))]  # -1 merges everyone


def representing(psi: Local | None, tau: float | Literal["auto"], local: Local) -> Local:
    """How a client is represented: by psi, by the paper's one gradient or, with tau: auto, by more local steps."""
    if psi is not None:
        return psi
    return GRADIENT if tau != "auto" else dataclasses.replace(local, epochs=None, steps=LOOK, keep_optimizer=False)


def chosen(state: Stochastic, tau: float | Literal["auto"]) -> float:
    """The tau that is given, or that was chosen."""
    return (0.0 if state.tau is None else state.tau) if tau == "auto" else tau


def with_tau(state: S, tau: float | Literal["auto"], psi: Local, cohort: Cohort, ask: Ask) -> S:
    """The state with the tau that halves show, where it is to be found, which the round then tells of."""
    if tau != "auto" or state.tau is not None:
        return state
    whole = Fit(All(state.anchor), local=psi, sketch=SKETCH, send=False, keep=False, on=at_least(ASKED, cohort))
    halves = [dataclasses.replace(whole, half=0), dataclasses.replace(whole, half=1)]
    all_of, first, second = ask([whole, *halves])
    evidence = halves_evidence(first.sketches, second.sketches, first.n)
    labels, alike = evidence.labels(evidence.k), cosines(all_of.sketches)
    together = labels[:, None] == labels[None]
    fits = torch.tensor([_agreement(together, greedy_merge(alike, tau)) for tau in GRID])
    best = (fits == fits.max()).nonzero().flatten()
    found = GRID[int(best[len(best) // 2])]
    scores = tuple((j, evidence.r2(j)) for j in range(1, min(SHOWN, len(labels)) + 1))
    why = f"two halves of the clients' data show that many; tau = {found:g} merges clients most nearly like that"
    cohort.counted.append(Counted(evidence.k, "tau: auto (halves)", len(labels), scores, why))
    return dataclasses.replace(state, tau=found)


def _agreement(together: torch.Tensor, labels: torch.Tensor) -> float:
    """Of the pairs that either clustering puts together, the share that both do (Jaccard)."""
    same = labels[:, None] == labels[None]
    return float((same & together).sum() / (same | together).sum())


def represented(state: Stochastic, who: Tensor, local: Local, ask: Ask) -> tuple[Tensor, Tensor]:
    """Line 6: those of these clients that were not met before, and what stands for them: how they move the anchor."""
    unmet = state.unmet(who)
    if not len(unmet):
        return unmet, state.psi[:0]
    try:
        reply = ask(Fit(All(state.anchor), local=local, keep=False, on=unmet))
    except NoAnswerError:  # those met before go on without them
        return unmet[:0], state.psi[:0]
    return reply.ids, state.represent(state.anchor - reply.models)


def joined_by_likeness(state: S, ids: Tensor, psi: Tensor, tau: float, ask: Ask) -> S:
    """These newcomers in their places. Who has no representation (a gradient of zero) is like nothing: the loss says
    whose model fits it best."""
    still = ids[~psi.any(1)]
    closest = least_loss(state.centers, still, ask) if len(still) else ByClient.empty()
    answered = psi.any(1) | closest.has(ids)
    return _placed(state, ids[answered], psi[answered], closest, tau)


def _placed(state: S, ids: Tensor, psi: Tensor, closest: ByClient, tau: float) -> S:
    """Newcomers join the cluster they are most like, if like enough; else each is one of its own, with that model.

    One after another, so that it does not matter how many come at once.
    """
    sums = torch.cat([state.psi, torch.zeros_like(psi)])
    first = many = len(state.centers)
    labels: list[int] = []
    founded: list[int] = []  # the row whose model a new cluster begins with
    for client, own in zip(ids, psi, strict=True):
        alike, nearest = cosines(own[None], sums[:many]).max(1)
        near = int(closest.at(client[None])[0]) if bool(closest.has(client[None])[0]) else int(nearest[0])
        if float(alike[0]) < tau or tau >= 1:
            founded.append(near if near < first else founded[near - first])
            near, many = many, many + 1
        labels.append(near)
        sums[near] += own
    rest, of = torch.tensor(founded, dtype=torch.int64), torch.tensor(labels, dtype=torch.int64)
    members = torch.cat([state.members, torch.zeros(len(rest))])
    state = dataclasses.replace(
        state,
        centers=torch.cat([state.centers, state.centers[rest]]),
        psi=sums[:many],
        members=members.index_add(0, of, torch.ones(len(of))),
        trained=torch.cat([state.trained, state.trained[rest].clamp(max=1)]),
    )
    return assigned(state.noting(ids, psi), ids, of)


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
