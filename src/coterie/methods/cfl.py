"""CFL: one cluster, split in two again and again wherever its members pull apart.

Sattler, Müller and Samek, Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under
Privacy Constraints, 2019 (Algorithms 1-4). A cluster is split when its members' mean update is short (< eps1) while
some member's is long (> eps2): a stationary point that does not suit everyone. The parts are those of least largest
cosine across; `linkage="complete"` is the authors' code.
The paper gives eps1 and eps2 per experiment, as lengths. With "auto" they are shares of the longest update of the first
round, 0.3 and 0.6, whatever the model and the local steps. On the demo a cluster of several kinds has a mean update of
0.29 of that and a longest one of 0.86 after five rounds; one of a single kind 0.30 and 0.51 after eight.
The server sees the single updates. Splits follow client ids, at every level.

Deviations: a split needs only the members that answered; absent members, and newcomers, walk down the tree of splits
(Algorithm 4): at each fork they train from its model and go where their update is most alike.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean_by, weigh
from coterie.clustering.linkage import bipartition
from coterie.clustering.similarity import cosines
from coterie.core.errors import NoAnswerError
from coterie.core.model import Model
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import All, Evaluate, Fit, Local, Pick
from coterie.methods.contract import Ask, Releases
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


MEAN, LONGEST = 0.3, 0.6  # eps1 and eps2 as shares of the longest update of the first round


@dataclass(frozen=True, config=STRICT)
class CFL:
    """One cluster, split in two again and again wherever its members pull apart."""

    paper: ClassVar[str] = "Sattler et al. 2019, arXiv:1910.01991"
    releases: ClassVar[Releases | str] = (
        "it splits by the cosines between single updates, and stops by the largest norm of one of them"
    )
    eps1: PositiveFloat | Literal["auto"] = "auto"  # split when the mean update is shorter than this
    eps2: PositiveFloat | Literal["auto"] = "auto"  # ... while some member's is longer than this
    gamma_max: NonNegativeFloat = 0.0  # ... and sqrt((1 - largest cosine across) / 2) is more than this
    linkage: Literal["single", "complete"] = "single"
    first_split: NonNegativeInt = 0  # rounds before the first split (20 in the authors' code)
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tree:
        """Everyone in one cluster."""
        none = torch.empty(0, dtype=torch.int64)
        w = model.init(rng)
        features = model.part("all")
        stems, directions = w.new_empty(0, len(w)), w.new_empty(0, 2, len(features))
        return Tree(w[None], ByClient.empty(), features, none, none, stems, directions)

    def round(self, state: Tree, cohort: Cohort, ask: Ask) -> Tree:
        """Train from the own cluster's model, split where needed, average what is then together."""
        state = self.admit(state, cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        reply = ask(Fit(Pick(state.centers, state.labels), local=self.local, on=met))
        labels, weights = reply.chosen, weigh(reply, self.weights)
        updates = state.represent(reply.models - state.centers[labels])
        state = dataclasses.replace(state, first=state.first or float(updates.norm(dim=1).max()))
        for cluster in range(len(state.centers)):
            rows = torch.nonzero(labels == cluster)[:, 0]
            parts = self.split(updates[rows], weights[rows], state.first) if cohort.round >= self.first_split else None
            if parts is not None:
                labels = labels.index_fill(0, rows[parts == 1], len(state.centers))
                state = forked(state, cluster, reply.ids, parts, updates[rows], weights[rows])
        centers = mean_by(labels, reply, weights, empty=state.centers)
        return assigned(dataclasses.replace(state, centers=centers), reply.ids, labels)

    def split(self, updates: Tensor, weights: Tensor, first: float) -> Tensor | None:
        """In which of two parts each member of a cluster is, if they pull apart. first: see `Tree`."""
        if len(updates) < 2:
            return None
        share = (weights / weights.sum()).to(updates.dtype)
        eps1 = MEAN * first if self.eps1 == "auto" else self.eps1
        eps2 = LONGEST * first if self.eps2 == "auto" else self.eps2
        if float((share @ updates).norm()) >= eps1 or float(updates.norm(dim=1).max()) <= eps2:
            return None
        parts, across = bipartition(cosines(updates), self.linkage)
        return parts if ((1 - across) / 2) ** 0.5 > self.gamma_max else None

    def predictor(self, state: Tree) -> Evaluate:
        """A client predicts with its cluster's model."""
        return state.predictor()

    def admit(self, state: Tree, cohort: Cohort, ask: Ask) -> Tree:
        """Walk down the tree, fork by fork in the order of the splits, to a leaf."""
        return walked_down(state, state.unmet(cohort.ids), self.local, ask)
