"""CFL's tree of splits: how a cluster is forked, and how a client walks down to its leaf (Algorithm 4)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.clustering.similarity import cosines
from coterie.core.client_table import ByClient
from coterie.core.errors import NoAnswerError
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.tasks import Fit
from coterie.methods.contract import Ask
from coterie.methods.hard_clusters import Clusters, assigned, least_loss

LOST = -1  # where a client stands that did not answer on its way down
STILL = -2  # ... that did not move at a fork


@dataclasses.dataclass(frozen=True, eq=False)
class Tree(Clusters):
    """Clusters, and the forks that led to them. The upper side of a fork keeps the cluster's number."""

    fork_of: Tensor  # (F,) the cluster that was split, in the order of the splits
    new_of: Tensor  # (F,) the number of the part that was split off
    stems: Tensor  # (F, P) the model at the fork
    directions: Tensor  # (F, 2, d) mean update of the part that stayed and of the part that left
    first: float = 0.0  # the norm of the longest update of the first round; 0 before it

    def measured_from(self) -> Tensor:
        """The models at the forks."""
        return self.stems


def forked(state: Tree, cluster: int, answered: Tensor, parts: Tensor, updates: Tensor, weights: Tensor) -> Tree:
    """A new cluster, split off from one: `parts`, `updates` and `weights` are of its members that `answered` (ids)."""
    stem = state.centers[cluster]
    means = mean_by(parts, updates, weights, empty=updates.new_zeros(2, updates.shape[1]))
    absent = (state.labels.values == cluster) & ~torch.isin(state.labels.ids, answered)
    return dataclasses.replace(
        state,
        centers=torch.cat([state.centers, stem[None]]),
        labels=ByClient(state.labels.ids[~absent], state.labels.values[~absent]),  # who is absent finds its side later
        fork_of=torch.cat([state.fork_of, torch.tensor([cluster])]),
        new_of=torch.cat([state.new_of, torch.tensor([len(state.centers)])]),
        stems=torch.cat([state.stems, stem[None]]),
        directions=torch.cat([state.directions, means[None]]),
    )


def walked_down(state: Tree, ids: Tensor, local: Local, ask: Ask) -> Tree:
    """These clients go from fork to fork, in the order of the splits, to a leaf: at each fork they train from its model
    and take the side that their update is most alike. Who does not answer stays unmet."""
    at = torch.zeros(len(ids), dtype=torch.int64)
    for fork in range(len(state.fork_of)):
        here = torch.nonzero(at == state.fork_of[fork])[:, 0]
        if not len(here):
            continue
        try:
            reply = ask(Fit(All(state.stems[fork]), local=local, keep=False, on=ids[here]))
        except NoAnswerError:
            at[here] = LOST
            continue
        answered = torch.isin(ids[here], reply.ids)
        at[here[~answered]] = LOST
        update = state.represent(reply.models - state.stems[fork])
        side = cosines(update, state.directions[fork]).argmax(1)
        at[here[answered][side == 1]] = state.new_of[fork]
        at[here[answered][~update.any(1)]] = STILL
    if (at == STILL).any():  # no update, no side: by the loss of the leaves
        best = least_loss(state.centers, ids[at == STILL], ask)
        at[torch.isin(ids, best.ids)] = best.values
    return assigned(state, ids[at >= 0], at[at >= 0])
