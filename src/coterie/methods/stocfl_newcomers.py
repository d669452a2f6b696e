"""How StoCFL represents a client it has not met, and where it puts one that comes after training."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.clustering.similarity import cosines
from coterie.core.client_table import ByClient
from coterie.core.errors import NoAnswerError
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.tasks import Fit
from coterie.methods.contract import Ask
from coterie.methods.hard_clusters import assigned, least_loss
from coterie.methods.stocfl_clusters import S, Stochastic


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
