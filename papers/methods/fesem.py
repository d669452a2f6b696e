"""FeSEM as the authors of WeCFL and of FedGroup run it in their comparisons.

WeCFL's authors cluster the weights of the last layer by a new k-means++ run each round (kmeans: fresh), whose clusters
are renumbered to the old ones here, and weigh models by size; in 2022 a size counted batches (size_unit: batches).
FedGroup's authors have a client that is new train from the mean of the centers and join the nearest one (join: nearest,
close to their code). With few local steps this does not separate clients: all may join the center nearest to that
mean.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from coterie.clustering.averaging import Weighting
from coterie.clustering.kmeans import fresh_kmeans, match_labels, nearest
from coterie.core.parts import Part
from coterie.core.references import All
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort
from coterie.core.tasks import Fit, Fitted
from coterie.methods.contract import Ask
from coterie.methods.fesem import FeSEM
from coterie.methods.hard_clusters import Clusters, assigned


@dataclass(frozen=True, config=STRICT)
class FeSEMAuthors(FeSEM):
    """FeSEM as other papers' authors run it: a new k-means each round, on the last layer's weights."""

    features: Part = "last_weight"
    weights: Weighting = "size"
    kmeans: Literal["warm", "fresh"] = "fresh"
    size_unit: Literal["samples", "batches"] = "samples"  # what a size counts; WeCFL's code of 2022: batches
    join: Literal["loss", "nearest"] = "loss"  # how a client that was not met before finds its cluster

    def weigh(self, reply: Fitted, how: Weighting) -> Tensor:
        """A weight per client that answered."""
        if how == "equal" or self.size_unit == "samples":
            return super().weigh(reply, how)
        batch = self.local.batch
        return torch.ones(len(reply.n)).double() if batch == "full" else (reply.n.double() / batch).ceil()

    def assign(self, reply: Fitted, state: Clusters, cohort: Cohort) -> tuple[Tensor, Clusters]:
        """The E-step: a new clustering, renumbered to the most similar old clusters."""
        if self.kmeans == "warm" or not len(state.labels.ids):
            return super().assign(reply, state, cohort)
        points, weights = state.represent(reply.models), self.weigh(reply, self.kmeans_weights)
        old = state.represent(state.centers)
        labels = fresh_kmeans(points, len(old), weights, cohort.rng)
        used, here = state.labels.values.unique(), state.labels.at(reply.ids, default=-1)
        return match_labels(points, labels, weights, old, absent=used[~torch.isin(used, here)]), state

    def meet(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """With join="nearest" the new ones train first, from the mean of the centers."""
        return super().meet(state, cohort, ask) if self.join == "loss" else state

    def taking_part(self, state: Clusters, cohort: Cohort) -> Tensor:
        """Those of the cohort that belong to a cluster; with join="nearest" everyone."""
        return super().taking_part(state, cohort) if self.join == "loss" else cohort.ids

    def admit(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """A newcomer joins the center of least loss, or the one nearest to what it trains from the mean of all."""
        unmet = state.unmet(cohort.ids)
        if self.join == "loss" or not len(unmet):
            return super().admit(state, cohort, ask)
        reply = ask(Fit(All(state.centers.mean(0)), local=self.local, keep=False, on=unmet))
        labels = nearest(state.represent(reply.models), state.represent(state.centers))
        return assigned(state, reply.ids, labels)
