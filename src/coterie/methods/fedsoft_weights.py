"""FedSoft's importance weights: how they are estimated, and how much each client then counts in each center.

With `select` (the paper's K), each center draws that many clients without replacement with probability v_sk ~ u_ks n_k
over all clients that can take part (Eq. 6 normalises over those selected, which cannot be known before the draw).
Without it everyone counts in every center with weight v_sk, which the draw approximates.

By the paper's sigma a center that no sample votes for becomes the mean of all clients. Where one center has all the
votes, that would make it a copy of that center, and where several have none, copies of each other, for good: then such
centers, but for one, keep their models (`unvoted="distinct"`).
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from coterie.core.client_table import ByClient
from coterie.core.cohort import Cohort
from coterie.core.errors import NoAnswerError
from coterie.core.tasks import Score
from coterie.methods.contract import Ask

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
