"""FedSoft: clients are mixtures of S clusters; one proximal problem per client serves all of them.

Ruan and Joe-Wong, FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022 (Algorithm 1).
u_ks is the share of client k's samples that center s fits best, at least sigma, and not renormalised. A client solves
min F_k(w) + lambda/2 sum_s u_ks |w - c_s|^2, whose S anchors are one: sum_s u_s |w - c_s|^2 = U |w - c|^2 + const with
U = sum_s u_s and c = sum_s u_s c_s / U. Its solution w_k is its personal model, and c_s is the mean of those selected.
The server sees the single models and importance weights.

With `select` (the paper's K), each center draws that many clients without replacement with probability v_sk ~ u_ks n_k
over all clients that can take part (Eq. 6 normalises over those selected, which cannot be known before the draw).
Without it everyone counts in every center with weight v_sk, which the draw approximates.
By the paper's sigma a center that no sample votes for becomes the mean of all clients. Where one center has all the
votes, that would make it a copy of that center, and where several have none, copies of each other, for good: then such
centers, but for one, keep their models (`unvoted="distinct"`).

A newcomer predicts with the centers mixed by the votes of its own samples.
The paper does not say where training starts. The defaults are the authors': independent centers, and clients continue
from their own last models. With deep networks these drift apart, and their mean is useless: then draw
centers near one start (`centers_init="near"`) and start clients from their mix of them (`start_from="centers"`); hidden
clusters are then found less often (rotated digits: ARI 0.5, not 1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.clustering.averaging import mean
from coterie.core.errors import NoAnswerError
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Estimated, Mix, Own, Ref
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import Evaluate, Fit, Score
from coterie.methods.contract import Ask, Releases
from coterie.methods.k import ClusterCount, K

TINY = 1e-200  # the least weight in a draw
Unvoted: TypeAlias = Literal["distinct", "keep", "average"]


@dataclasses.dataclass(frozen=True, eq=False)
class Soft:
    """S centers, the share of each in a client, and where personal models start."""

    centers: Tensor  # (S, P)
    u: ByClient  # (n, S) importance weights of the clients met so far
    personal: Tensor  # (P,)
    estimated: ByClient = dataclasses.field(default_factory=ByClient.empty)  # the round of each client's u


def estimated(state: Soft, cohort: Cohort, tau: int, sigma: float, ask: Ask) -> Soft:
    """u_ks = max(share of votes, sigma), for clients that have none, or one that is tau rounds old."""
    since = state.estimated.at(cohort.ids, default=cohort.round - tau)
    who = cohort.ids[~state.u.has(cohort.ids) | (cohort.round - since >= tau)]
    if not len(who):
        return state
    try:
        votes = ask(Score(state.centers, rule="votes", on=who))
    except NoAnswerError:  # others may have weights of an earlier round
        return state
    u = state.u.put(votes.ids, votes.scores.clamp(min=sigma))
    now = torch.full_like(votes.ids, cohort.round)
    return dataclasses.replace(state, u=u, estimated=state.estimated.put(votes.ids, now))


def shares(ids: Tensor, u: Tensor, sigma: float, cohort: Cohort) -> Tensor:
    """v (S, n): u_ks n_k, normalised over these clients."""
    n = cohort.roster.n[torch.searchsorted(cohort.roster.ids, ids)]
    least = max(sigma, TINY)  # which u, of single precision, may have rounded to zero
    v = (torch.where(u > 0, u.double(), least) * n[:, None]).T
    return v / v.sum(1, keepdim=True)


def of_everyone(v: Tensor, u: Tensor, sigma: float, unvoted: Unvoted) -> Tensor:
    """Weights (S, n) of all clients; zero for centers without a vote, which keep their models."""
    voted = (u > torch.tensor(sigma, dtype=u.dtype)).any(0)
    moves = voted.clone()
    if unvoted == "average":
        moves[:] = True
    elif unvoted == "distinct" and int(voted.sum()) > 1 and not bool(voted.all()):
        moves[int(voted.int().argmin())] = True  # the first of the others: a second mean of all would be its copy
    return v * moves[:, None]


def of_the_drawn(v: Tensor, select: int, again: bool, cohort: Cohort) -> Tensor:
    """Weights (S, n): how often each center drew each client."""
    clients = v.shape[1]
    many = select if again else min(select, clients)
    draws = [cohort.rng.choice(clients, many, replace=again, p=chances) for chances in v.numpy()]
    return torch.stack([torch.bincount(torch.from_numpy(d), minlength=clients) for d in draws]).double()


NEAR = 0.1  # of the way from one start to independent random models


@dataclass(frozen=True, config=STRICT)
class FedSoft:
    """Clients are mixtures of clusters; one proximal problem per client gives personal models too."""

    paper: ClassVar[str] = "Ruan and Joe-Wong 2022, arXiv:2112.06053"
    releases: ClassVar[Releases | str] = (
        "every client sends its shares of all clusters, and its own model, again and again"
    )
    later: ClassVar[Mapping[str, Any]] = {"centers_init": "random", "unvoted": "distinct"}

    k: ClusterCount = 2  # S, the number of clusters
    lam: NonNegativeFloat = 0.1  # lambda
    tau: PositiveInt = 2  # rounds between two estimations of u
    sigma: PositiveFloat = 1e-4  # the least importance weight
    select: PositiveInt | None = None  # K, clients per center and round
    select_again: bool = False  # whether a center may draw the same client twice in a round
    start_from: Literal["own", "centers"] = "own"  # where a client's training begins: its last model, or its mix
    centers_init: Literal["random", "near"] = "random"  # drawn independently, or near one start
    unvoted: Unvoted = "distinct"  # without `select`: a center that no sample votes for
    local: Local = Local()

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Soft:
        """S random centers, and one more random model where all personal models begin, with the centers near it."""
        centers = K(self.k).random_models(model, roster, rng)
        personal = model.init(rng)
        if self.centers_init == "near":
            centers = torch.lerp(personal[None], centers, NEAR)
        return Soft(centers, ByClient.empty(torch.float32, (len(centers),)), personal)

    def round(self, state: Soft, cohort: Cohort, ask: Ask) -> Soft:
        """Estimate u, select, solve the proximal problems, average."""
        state = K(self.k).chosen(state, self.local, cohort, ask)
        state = estimated(state, cohort, self.tau, self.sigma, ask)
        ids = cohort.ids[state.u.has(cohort.ids)]
        if not len(ids):
            return state
        u, centers = state.u.at(ids), state.centers
        total, weight = u.sum(1), self.weigh(ids, u, cohort)
        anchor, mu = Mix(centers, ByClient(ids, u / total[:, None])), ByClient(ids, self.lam * total)
        start: Ref = Own("fedsoft.w", All(state.personal)) if self.start_from == "own" else anchor
        taking_part = ids[weight.sum(0) > 0]
        reply = ask(Fit(start, anchor=anchor, mu=mu, local=self.local, save="fedsoft.w", on=taking_part))
        rows = torch.searchsorted(ids, reply.ids)
        moved = [mean(reply, w[rows], empty=c) if w[rows].any() else c for w, c in zip(weight, centers, strict=True)]
        return dataclasses.replace(state, centers=torch.stack(moved))

    def weigh(self, ids: Tensor, u: Tensor, cohort: Cohort) -> Tensor:
        """How much each client counts in each center (S, n): v, or whether it was drawn."""
        v = shares(ids, u, self.sigma, cohort)
        if self.select is None:
            return of_everyone(v, u, self.sigma, self.unvoted)
        return of_the_drawn(v, self.select, self.select_again, cohort)

    def predictor(self, state: Soft) -> Evaluate:
        """A client predicts with its personal model; a newcomer with the centers, mixed by its votes."""
        votes = Estimated(state.centers, "votes")
        return Evaluate((Own("fedsoft.w", Mix(state.centers, votes)),), belongs=votes)
