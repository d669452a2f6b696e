"""WeCFL's framework as a kit: a representation, a distance, a clustering, weights, and when to cluster.

Ma et al. 2022 (Eq. 3): any clustered method is a lower level that groups representations g_i by a distance d, and an
upper level that trains one model per group. FeSEM is (all, euclidean, kmeans, equal, every); WeCFL is (classifier,
euclidean, kmeans, size, every); FL+HC is (update, euclidean, agglomerative, size, once); FedGroup's grouping is
(update, edc, kmeans, equal, once); StoCFL's is (gradient, cosine, merge); IFCA's is (losses, argmin).
The server sees representations and means of models. Newcomers join the nearest mean representation, or by loss.
`when: drift` clusters once; then clients whose data has changed, by their losses and by two halves of it, move to the
model that fits, anew where none does.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from coterie.clustering.averaging import Weighting, weigh
from coterie.clustering.kmeans import nearest
from coterie.core.cohort import Cohort, Roster
from coterie.core.constructors import dataclass
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.model_parts import Part
from coterie.core.references import All
from coterie.core.replies import Fitted
from coterie.core.tasks import Evaluate, Fit
from coterie.core.types import STRICT
from coterie.methods.auto_k import AutoK, random_models
from coterie.methods.cluster_count import enough_clients, too_few
from coterie.methods.composed_clustering import LowerLevel
from coterie.methods.composed_drift import followed
from coterie.methods.composed_groups import averaged_by_place, overlapping, regrouped
from coterie.methods.composed_kit import Kit, Represented
from coterie.methods.contract import Ask, admitted
from coterie.methods.count_by_halves import with_k
from coterie.methods.hard_clusters import assigned, by_angle, joined_by_loss


@dataclass(frozen=True, config=STRICT)
class Composed(LowerLevel):
    """Your own clustered method: representation x distance x clustering x weights x when."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187 (section 5)"
    representation: Part | Literal["update", "gradient", "losses"] = "all"  # a part of the model, or what it says
    clustering_weights: Weighting = "size"
    weights: Weighting = "size"
    when: Literal["every", "once", "stable", "drift"] = "every"  # drift: see `composed_drift`
    patience: PositiveInt = 3  # "stable": clusterings without a change before they end
    first: NonNegativeInt = 0  # rounds of FedAvg before the first clustering
    local: Local = Local()

    @model_validator(mode="after")
    def _can_be_chosen_by(self) -> Composed:
        if self.clustering == "argmin" and self.representation != "losses":
            raise ValueError("clustering 'argmin' is that of the least loss: use representation 'losses'")
        return self

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Kit:
        """One common start, or K random models to be chosen from by loss."""
        enough_clients(self.k, roster)
        match self.representation:
            case "losses":
                return Kit.fresh(random_models(self.k, model, roster, rng), model.part("all"))
            case "update" | "gradient":
                return Kit.fresh(model.init(rng)[None], model.part("all"))
            case part:
                return Kit.fresh(model.init(rng)[None], model.part(part))

    def round(self, state: Kit, cohort: Cohort, ask: Ask) -> Kit:
        """Represent and cluster, where it is time to; train; average what is together."""
        by_number = self.representation != "losses" and not self.by_cosine and self.threshold is None
        if self.k == "auto" and by_number and cohort.round >= self.first:
            now = len(state.centers) if state.means.numel() else 0
            return with_k(self, now, state.centers[0], cohort, ask).round(state, cohort, ask)
        enough = self.when == "every" or not too_few(self.k, cohort)
        clustering = enough and not state.done and cohort.round >= self.first
        if self.representation == "losses":
            state = AutoK(self, self.k).choose(state, cohort, ask)
        early = self.early(state, ask) if clustering else None
        if not clustering or self.by_loss:
            state = admitted(self, state, cohort, ask)
        start, on = state.start(cohort.ids), None
        if early is not None and self.representation == "losses":
            start, on = state.of_least_loss(early, anew=self.clustering == "argmin"), early.ids
        reply = ask(Fit(start, local=self.local, on=on))
        if clustering:
            late = state.models(reply, since=start if self.representation == "update" else None)
            state = self.regroup(state, early or late, reply, cohort)
        if self.when == "drift":
            state, here = followed(state, reply, self.local, cohort, ask)
            return averaged_by_place(state, reply, weigh(reply, self.weights) * here)
        return averaged_by_place(state, reply, weigh(reply, self.weights))

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

    def predictor(self, state: Kit) -> Evaluate:
        """A client predicts with its cluster's model (before the first clustering: with the one there is)."""
        return state.predictor() if state.means.numel() else Evaluate((All(state.centers[0]),))

    def admit(self, state: Kit, cohort: Cohort, ask: Ask) -> Kit:
        """A newcomer joins the nearest mean representation, or the center of least loss."""
        unmet = state.unmet(cohort.ids)
        if not len(unmet) or not state.means.numel():
            return state
        if self.by_loss or (found := self.early(state, ask, unmet)) is None:
            return joined_by_loss(state, unmet, ask)
        if self.distance != "euclidean" or self.by_cosine:
            return by_angle(state, found.ids, found.points, state.means, ask)
        return assigned(state, found.ids, nearest(found.points, state.means))
