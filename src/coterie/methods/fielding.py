"""Fielding: clusters of clients with similar label shares, kept up while the shares drift.

Li et al., Fielding: Clustered Federated Learning with Data Drift, AISTATS 2026 (arXiv:2411.01580, first version: by
labels). Every client of a round reports the shares of its labels. A client whose shares moved by more than `drifted`
(L1), or that is new, joins the nearest center (L1). If a center is further than `moved` times the mean distance between
centers from where it was at the last clustering, all clients known are clustered anew by k-means; a new cluster starts
at the mean of its members' previous models. FedAvg in each cluster.
The server sees the label shares of every client, and means of models. Clients that differ in their inputs only, as by
a rotation, are alike to it. Of the paper only the abstract was available: `drifted` and `moved` are our choices, and no
cell of its tables is claimed. Labels count modulo `classes`; targets of a regression are binned.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean_by, weigh
from coterie.clustering.kmeans import by_first_member, fresh_kmeans
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Pick
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import Describe, Evaluate, Fit
from coterie.methods.contract import Ask, Releases
from coterie.methods.hard_clusters import DescribedClusters, averaged
from coterie.methods.k import K, at_most


@dataclasses.dataclass(frozen=True, eq=False)
class LabelClusters(DescribedClusters):
    """Clusters by label shares, and where their centers were at the last clustering."""

    then: Tensor  # (K, classes), or (0, classes) before the first
    of_clusters: ClassVar[tuple[str, ...]] = ("centers", "then")


def means(state: LabelClusters) -> Tensor:
    """The mean label shares of each cluster now; an empty one keeps its own."""
    members = state.rows
    return mean_by(state.labels.at(members.ids), members.values, torch.ones(len(members.ids)), empty=state.then)


@dataclass(frozen=True, config=STRICT)
class Fielding:
    """Clusters of clients with similar label shares, kept up while the shares drift; FedAvg in each."""

    paper: ClassVar[str] = "Li et al. 2026, arXiv:2411.01580"
    releases: ClassVar[Releases | str] = "every client sends the shares of its labels in every round"

    k: PositiveInt | Literal["silhouette", "gap"] = 4
    classes: PositiveInt = 64  # numbers in a description: more labels than that share them
    drifted: NonNegativeFloat = 0.1  # L1 between a client's label shares then and now, beyond which it is placed anew
    moved: PositiveFloat = 1 / 3  # of the mean distance between centers, beyond which all are clustered anew
    cluster_at_most: PositiveInt = 10_000
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> LabelClusters:
        """One random model; the clusters come with the first round."""
        K(self.k).check(roster)
        fresh = DescribedClusters.fresh(model.init(rng), model.part("all"), self.classes)
        return LabelClusters(**vars(fresh), then=fresh.rows.values)

    def round(self, state: LabelClusters, cohort: Cohort, ask: Ask) -> LabelClusters:
        """Shares first, of everyone in the first round; then FedAvg in each cluster."""
        if not len(state.then):
            K(self.k).wait_for_enough(cohort)
            said = ask(Describe("labels", self.classes, on=at_most(self.cluster_at_most, cohort.roster.ids, cohort)))
            K(self.k).enough_answers(said.ids, cohort)
            state = self.cluster(state.put(said.ids, torch.zeros_like(said.ids), said.rows), cohort)
        else:
            said = ask(Describe("labels", self.classes))
            state = self.placed(state, said.ids, said.rows)
            between = torch.pdist(state.then, p=1)
            if len(between) and bool(((means(state) - state.then).abs().sum(1) > self.moved * between.mean()).any()):
                state = self.cluster(state, cohort)
        met = cohort.ids[state.labels.has(cohort.ids)]
        reply = ask(Fit(Pick(state.centers, state.labels), local=self.local, on=met))
        return averaged(state, reply, reply.chosen, weigh(reply, self.weights))

    def placed(self, state: LabelClusters, ids: Tensor, rows: Tensor) -> LabelClusters:
        """Whoever is new or has drifted joins the nearest center; of the others the first word stands."""
        far = (state.rows.at(ids, default=torch.inf) - rows).abs().sum(1) > self.drifted
        return state.put(ids[far], torch.cdist(rows[far], means(state), p=1).argmin(1), rows[far])

    def cluster(self, state: LabelClusters, cohort: Cohort) -> LabelClusters:
        """Everyone known by k-means; a cluster's model is the mean of its members' previous ones."""
        rows, equal = state.rows.values, torch.ones(len(state.rows.ids), dtype=torch.float64)
        labels = by_first_member(fresh_kmeans(rows, K(self.k).of(rows, equal, cohort), equal, cohort.rng))
        previous = state.centers[state.labels.at(state.rows.ids)]
        centers = mean_by(labels, previous, equal, empty=previous[: int(labels.max()) + 1])
        state = replace(state, centers=centers).put(state.rows.ids, labels, rows)
        return replace(state, then=mean_by(labels, rows, equal, empty=rows[: len(centers)]))

    def predictor(self, state: LabelClusters) -> Evaluate:
        """A client predicts with its cluster's model (before there are clusters: with the first one)."""
        return state.predictor() if len(state.then) else Evaluate((All(state.centers[0]),))

    def admit(self, state: LabelClusters, cohort: Cohort, ask: Ask) -> LabelClusters:
        """A newcomer joins the nearest center."""
        if not len(unmet := state.unmet(cohort.ids)) or not len(state.then):
            return state
        said = ask(Describe("labels", self.classes, on=unmet))
        return self.placed(state, said.ids, said.rows)
