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

from typing import ClassVar

import numpy as np

from coterie.clustering.averaging import weigh
from coterie.clustering.kmeans import nearest
from coterie.core.cohort import Cohort, Roster
from coterie.core.constructors import dataclass
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.tasks import Evaluate, Fit
from coterie.core.types import STRICT
from coterie.methods.auto_k import AutoK, random_models
from coterie.methods.cluster_count import enough_clients, too_few
from coterie.methods.composed_drift import followed
from coterie.methods.composed_grouping import Grouping
from coterie.methods.composed_groups import averaged_by_place
from coterie.methods.composed_kit import Kit
from coterie.methods.contract import Ask, admitted
from coterie.methods.count_by_halves import with_k
from coterie.methods.hard_clusters import assigned, by_angle, joined_by_loss


@dataclass(frozen=True, config=STRICT)
class Composed(Grouping):
    """Your own clustered method: representation x distance x clustering x weights x when."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187 (section 5)"

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
