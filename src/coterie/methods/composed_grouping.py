"""How a composed method represents clients, and when it groups them by that."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from coterie.clustering.averaging import Weighting, weigh
from coterie.core.cohort import Cohort
from coterie.core.constructors import dataclass
from coterie.core.local import Local
from coterie.core.model_parts import Part
from coterie.core.replies import Fitted
from coterie.core.types import STRICT
from coterie.methods.composed_clustering import LowerLevel
from coterie.methods.composed_groups import overlapping, regrouped
from coterie.methods.composed_kit import Kit, Represented
from coterie.methods.contract import Ask


@dataclass(frozen=True, config=STRICT)
class Grouping(LowerLevel):
    """A representation, weights, and when to cluster, beside the lower level's distance and clustering."""

    representation: Part | Literal["update", "gradient", "losses"] = "all"  # a part of the model, or what it says
    clustering_weights: Weighting = "size"
    weights: Weighting = "size"
    when: Literal["every", "once", "stable", "drift"] = "every"  # drift: see `composed_drift`
    patience: PositiveInt = 3  # "stable": clusterings without a change before they end
    first: NonNegativeInt = 0  # rounds of FedAvg before the first clustering
    local: Local = Local()

    @model_validator(mode="after")
    def _can_be_chosen_by(self) -> Grouping:
        if self.clustering == "argmin" and self.representation != "losses":
            raise ValueError("clustering 'argmin' is that of the least loss: use representation 'losses'")
        return self

    @property
    def by_loss(self) -> bool:
        """Whether a newcomer joins the center of least loss."""
        return self.clustering == "argmin" or self.representation not in ("gradient", "losses")

    def early(self, state: Kit, ask: Ask, on: Tensor | None = None) -> Represented | None:
        """Representations that do not come out of training."""
        if self.representation == "losses":
            return state.losses(ask, on)
        return state.gradients(ask, on) if self.representation == "gradient" else None

    def regroup(self, state: Kit, found: Represented, reply: Fitted, cohort: Cohort) -> Kit:
        """New clusters under old numbers where they overlap."""
        found = found.of(reply.ids)
        if len(found.ids) < (1 if self.when == "every" else self.limit or 1):  # too few for what may be the last time
            return state
        weights = weigh(reply, self.clustering_weights)[torch.isin(reply.ids, found.ids)]
        labels = self.cluster(found.points, weights, cohort)
        if self.clustering != "argmin":  # a row of least loss has its number already
            labels = overlapping(state, found, labels, weights, self.limit)
        state = regrouped(state, found, labels, weights, self.limit)
        done = self.when in ("once", "drift") or (self.when == "stable" and state.unchanged >= self.patience)
        return dataclasses.replace(state, done=done)
