"""FedSoft: clients are mixtures of S clusters; one proximal problem per client serves all of them.

Ruan and Joe-Wong, FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022 (Algorithm 1).
u_ks is the share of client k's samples that center s fits best, at least sigma, and not renormalised. A client solves
min F_k(w) + lambda/2 sum_s u_ks |w - c_s|^2, whose S anchors are one: sum_s u_s |w - c_s|^2 = U |w - c|^2 + const with
U = sum_s u_s and c = sum_s u_s c_s / U. Its solution w_k is its personal model, and c_s is the mean of those selected.
The server sees the single models and importance weights.

With `select` (the paper's K), each center draws that many clients without replacement with probability v_sk ~ u_ks n_k
over all clients that can take part (Eq. 6 normalises over those selected, which cannot be known before the draw), and
c_s is their plain mean; without it everyone counts in every center with weight v_sk, which the draw approximates.
A newcomer predicts with the centers mixed by the votes of its own samples.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.byclient import ByClient
from coterie.domains import STRICT
from coterie.means import mean
from coterie.methods.contract import Ask
from coterie.methods.counting import ClusterCount, chosen_rows, random_models
from coterie.model import Model
from coterie.tasks import All, Cohort, Estimated, Evaluate, Fit, Local, Mix, Own, Ref, Roster, Score


@dataclasses.dataclass(frozen=True, eq=False)
class Soft:
    """S centers, how much of each a client is, and where personal models begin."""

    centers: Tensor  # (S, P)
    u: ByClient  # (n, S) importance weights of the clients met so far
    personal: Tensor  # (P,)


@dataclass(frozen=True, config=STRICT)
class FedSoft:
    """Clients are mixtures of clusters; one proximal problem each, personal models for free."""

    paper: ClassVar[str] = "Ruan and Joe-Wong 2022, arXiv:2112.06053"

    k: ClusterCount = 2  # S, the number of clusters
    lam: NonNegativeFloat = 0.1  # lambda
    tau: PositiveInt = 2  # rounds between two estimations of u
    sigma: PositiveFloat = 1e-4  # the least importance weight
    select: PositiveInt | None = None  # K, clients per center and round
    select_again: bool = False  # whether a center may draw the same client twice in a round
    start_from: Literal["own", "centers"] = "own"  # where a client's training begins: its last model, or its mix
    local: Local = Local()

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Soft:
        """S random centers, and one more random model where all personal models begin."""
        centers = random_models(self.k, model, roster, rng)
        return Soft(centers, ByClient.empty(torch.float32, (len(centers),)), model.init(rng))

    def round(self, state: Soft, cohort: Cohort, ask: Ask) -> Soft:
        """Estimate u, select, solve the proximal problems, average."""
        centers = chosen_rows(state.centers, self.k, self.local, cohort, ask)
        if len(centers) < len(state.centers):
            state = Soft(centers, ByClient.empty(torch.float32, (len(centers),)), state.personal)
        state = self.estimate(state, cohort, ask)
        ids = cohort.ids[state.u.has(cohort.ids)]
        if not len(ids):
            return state
        u = state.u.at(ids)
        total = u.sum(1)
        anchor = Mix(centers, ByClient(ids, u / total[:, None]))
        start: Ref = Own("fedsoft.w", All(state.personal)) if self.start_from == "own" else anchor
        weight = self.weigh(ids, u, cohort)
        taking_part = ids[weight.sum(0) > 0]
        mu = ByClient(ids, self.lam * total)
        reply = ask(Fit(start, anchor=anchor, mu=mu, local=self.local, save="fedsoft.w", on=taking_part))
        rows = torch.searchsorted(ids, reply.ids)
        moved = [mean(reply, w[rows], empty=c) if w[rows].any() else c for w, c in zip(weight, centers, strict=True)]
        return dataclasses.replace(state, centers=torch.stack(moved))

    def estimate(self, state: Soft, cohort: Cohort, ask: Ask) -> Soft:
        """u_ks = max(share of votes, sigma), every tau rounds, and for whoever has none."""
        due = cohort.round % self.tau == 0
        who = cohort.ids if due else cohort.ids[~state.u.has(cohort.ids)]
        if not len(who):
            return state
        votes = ask(Score(state.centers, rule="votes", on=who))
        return dataclasses.replace(state, u=state.u.put(votes.ids, votes.scores.clamp(min=self.sigma)))

    def weigh(self, ids: Tensor, u: Tensor, cohort: Cohort) -> Tensor:
        """How much each client counts in each center (S, n): v, or whether it was drawn."""
        n = cohort.roster.n[torch.searchsorted(cohort.roster.ids, ids)]
        v = (u.double() * n[:, None]).T
        v = v / v.sum(1, keepdim=True)
        if self.select is None:
            return v
        many = self.select if self.select_again else min(self.select, len(ids))
        draws = [cohort.rng.choice(len(ids), many, replace=self.select_again, p=chances) for chances in v.numpy()]
        return torch.stack([torch.bincount(torch.from_numpy(d), minlength=len(ids)) for d in draws]).double()

    def predictor(self, state: Soft) -> Evaluate:
        """A client predicts with its personal model; a newcomer with the centers, mixed by its votes."""
        votes = Estimated(state.centers, "votes")
        return Evaluate((Own("fedsoft.w", Mix(state.centers, votes)),), belongs=votes)
