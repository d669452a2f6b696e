"""CFL: one cluster, split in two again and again wherever its members pull apart.

Sattler, Müller and Samek, Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under
Privacy Constraints, 2019 (Algorithms 1-4). A cluster is split when its members' mean update is short (< eps1) while
some member's is long (> eps2): a stationary point that does not suit everyone. The parts are those of least largest
cosine across; `linkage="complete"` is the authors' code.
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
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.byclient import ByClient
from coterie.clustering import bipartition, cosines
from coterie.domains import STRICT
from coterie.means import Weighting, mean_by, weigh
from coterie.methods.clusters import Clusters, assigned
from coterie.methods.contract import Ask
from coterie.model import Model
from coterie.tasks import All, Cohort, Evaluate, Fit, Local, Pick, Roster

LOST = -1  # where a client stands that did not answer on its way down


@dataclasses.dataclass(frozen=True, eq=False)
class Tree(Clusters):
    """Clusters, and the forks that led to them. The upper side of a fork keeps the cluster's number."""

    fork_of: Tensor  # (F,) the cluster that was split, in the order of the splits
    new_of: Tensor  # (F,) the number of the part that was split off
    stems: Tensor  # (F, P) the model at the fork
    directions: Tensor  # (F, 2, d) mean update of the part that stayed and of the part that left


@dataclass(frozen=True, config=STRICT)
class CFL:
    """One cluster, split in two again and again wherever its members pull apart."""

    paper: ClassVar[str] = "Sattler et al. 2019, arXiv:1910.01991"

    eps1: PositiveFloat = 0.4  # split when the mean update is shorter than this
    eps2: PositiveFloat = 1.6  # ... while some member's is longer than this
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
        before, state = state, self.admit(state, cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        reply = ask(Fit(Pick(state.centers, state.labels), local=self.local, on=met))
        if reply.theta is None:
            return before
        labels, weights = reply.chosen, weigh(reply, self.weights)
        updates = state.represent(reply.theta - state.centers[labels])
        for cluster in range(len(state.centers)):
            rows = torch.nonzero(labels == cluster)[:, 0]
            if cohort.round >= self.first_split and len(rows) >= 2:
                state, labels = self.split(state, labels, cluster, rows, reply.ids, updates, weights)
        centers = mean_by(labels, reply.theta, weights, empty=state.centers)
        return assigned(dataclasses.replace(state, centers=centers), reply.ids, labels)

    def split(
        self, state: Tree, labels: Tensor, cluster: int, rows: Tensor, ids: Tensor, updates: Tensor, weights: Tensor
    ) -> tuple[Tree, Tensor]:
        """Split one cluster if its members pull apart; `rows` are where its members stand in the reply."""
        mine = updates[rows]
        share = (weights[rows] / weights[rows].sum()).to(mine.dtype)
        if float((share @ mine).norm()) >= self.eps1 or float(mine.norm(dim=1).max()) <= self.eps2:
            return state, labels
        parts, across = bipartition(cosines(mine), self.linkage)
        if ((1 - across) / 2) ** 0.5 <= self.gamma_max:
            return state, labels
        new = len(state.centers)
        labels = labels.clone()
        labels[rows[parts == 1]] = new
        stem = state.centers[cluster]
        means = mean_by(parts, mine, weights[rows], empty=mine.new_zeros(2, mine.shape[1]))
        answered = torch.isin(state.labels.ids, ids)
        absent = (state.labels.values == cluster) & ~answered  # they find their side when they are next met
        return (
            Tree(
                torch.cat([state.centers, stem[None]]),
                ByClient(state.labels.ids[~absent], state.labels.values[~absent]),
                state.features,
                torch.cat([state.fork_of, torch.tensor([cluster])]),
                torch.cat([state.new_of, torch.tensor([new])]),
                torch.cat([state.stems, stem[None]]),
                torch.cat([state.directions, means[None]]),
            ),
            labels,
        )

    def predictor(self, state: Tree) -> Evaluate:
        """A client predicts with its cluster's model."""
        return state.predictor()

    def admit(self, state: Tree, cohort: Cohort, ask: Ask) -> Tree:
        """Walk down the tree, fork by fork in the order of the splits, to a leaf."""
        unmet = state.unmet(cohort.ids)
        at = torch.zeros(len(unmet), dtype=torch.int64)
        for fork in range(len(state.fork_of)):
            here = torch.nonzero(at == state.fork_of[fork])[:, 0]
            if not len(here):
                continue
            reply = ask(Fit(All(state.stems[fork]), local=self.local, on=unmet[here]))
            lost = here[~torch.isin(unmet[here], reply.ids)]
            at[lost] = LOST  # stays unmet
            if reply.theta is not None:
                update = state.represent(reply.theta - state.stems[fork])
                side = cosines(update, state.directions[fork]).argmax(1)
                left = here[torch.isin(unmet[here], reply.ids)][side == 1]
                at[left] = state.new_of[fork]
        found = at >= 0
        return assigned(state, unmet[found], at[found])
