"""WeCFL's framework as a kit: a representation, a distance, a clustering, weights, and when to cluster.

Ma et al. 2022 (Eq. 3): any clustered method is a lower level that groups representations g_i by a distance d, and an
upper level that trains one model per group. FeSEM is (all, euclidean, kmeans, equal, every); WeCFL is (classifier,
euclidean, kmeans, size, every); FL+HC is (update, euclidean, agglomerative, size, once); FedGroup's grouping is
(update, edc, kmeans, equal, once); StoCFL's is (gradient, cosine, merge); IFCA's is (losses, argmin).
The server sees every client's representation, and means of models.

A client that has not been met starts from the mean of the centers and joins the cluster whose mean representation is
nearest. Clusters found anew are renumbered to overlap most with the old ones; one that finds no old one is new.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from coterie.byclient import ByClient
from coterie.clustering import (
    Linkage,
    agglomerate,
    centroids,
    cosines,
    distances,
    edc_features,
    fresh_kmeans,
    greedy_merge,
    madc,
    nearest,
    renumber,
    split_all,
)
from coterie.domains import STRICT
from coterie.means import Weighting, mean_by, weigh
from coterie.methods.clusters import Clusters, assigned, averaged
from coterie.methods.contract import Ask
from coterie.methods.counting import ClusterCount, chosen_rows, count, enough_clients, random_models, too_few
from coterie.methods.stocfl import GRADIENT
from coterie.model import Model
from coterie.tasks import All, Cohort, Evaluate, Fit, Fitted, Local, Pick, Roster, Score


@dataclasses.dataclass(frozen=True, eq=False)
class Kit(Clusters):
    """Clusters, the mean representation of each, and how long they have not changed."""

    means: Tensor  # (K, d)
    anchor: Tensor  # (P,) where gradients are taken
    unchanged: int  # clusterings in a row
    done: bool  # no more clustering


@dataclasses.dataclass(frozen=True, eq=False)
class Represented:
    """What stands for each of these clients."""

    ids: Tensor
    points: Tensor  # (n, d)


@dataclass(frozen=True, config=STRICT)
class Composed:
    """Your own clustered method: representation x distance x clustering x weights x when."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187 (section 5)"

    representation: Literal["all", "classifier", "last_weight", "update", "gradient", "losses"] = "all"
    distance: Literal["euclidean", "cosine", "edc", "madc"] = "euclidean"
    clustering: Literal["kmeans", "agglomerative", "merge", "bipartition", "argmin"] = "kmeans"
    k: ClusterCount = 4
    threshold: float | None = None  # agglomerative: a distance; merge, bipartition: a cosine
    linkage: Linkage = "complete"
    clustering_weights: Weighting = "size"
    weights: Weighting = "size"
    when: Literal["every", "once", "stable"] = "every"
    patience: PositiveInt = 3  # "stable": clusterings without a change before they end
    first: NonNegativeInt = 0  # rounds of FedAvg before the first clustering
    local: Local = Local()

    @model_validator(mode="after")
    def _fits_together(self) -> Composed:
        by_cosine = self.clustering in ("merge", "bipartition")
        if by_cosine and self.threshold is None:
            raise ValueError(
                f"clustering '{self.clustering}' needs a threshold: the cosine above which clients are alike"
            )
        if by_cosine and self.distance not in ("cosine", "euclidean"):
            raise ValueError(
                f"clustering '{self.clustering}' looks at cosines; distance '{self.distance}' does not apply"
            )
        if self.distance == "madc" and self.clustering != "agglomerative":
            raise ValueError("distance 'madc' is a matrix, not coordinates: use clustering 'agglomerative'")
        if self.clustering == "argmin" and self.representation != "losses":
            raise ValueError("clustering 'argmin' is that of the least loss: use representation 'losses'")
        if self.linkage == "ward" and self.distance != "euclidean":
            raise ValueError("linkage 'ward' is defined for distance 'euclidean' only")
        return self

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Kit:
        """One common start, or K random models to be chosen from by loss."""
        enough_clients(self.k, roster)
        part = self.representation if self.representation in ("classifier", "last_weight") else "all"
        features = model.part(part)
        centers = (
            random_models(self.k, model, roster, rng) if self.representation == "losses" else model.init(rng)[None]
        )
        return Kit(centers, ByClient.empty(), features, centers.new_empty(0, 0), centers[0], 0, False)

    def round(self, state: Kit, cohort: Cohort, ask: Ask) -> Kit:
        """Represent and cluster, where it is time to; train; average what is together."""
        clustering = not state.done and cohort.round >= self.first
        clustering = clustering and (self.when == "every" or not too_few(self.k, cohort))
        if self.representation == "losses":
            centers = chosen_rows(state.centers, self.k, self.local, cohort, ask)
            state = dataclasses.replace(state, centers=centers)
        early = self.early(state, ask) if clustering else None
        if not clustering:
            state = self.admit(state, cohort, ask)
        start = state.start(cohort.ids)
        if early is not None and self.representation == "losses":  # train the row that was just found best, or the own
            best, own = early.points.argmin(1), state.labels.at(early.ids, default=-1)
            rows = best if self.clustering == "argmin" else torch.where(own < 0, best, own)
            start = Pick(state.centers, ByClient(early.ids, rows))
            reply = ask(Fit(start, local=self.local, on=early.ids))
        else:
            reply = ask(Fit(start, local=self.local))
        if reply.sent is None:
            return state
        if clustering:
            found = early or Represented(reply.ids, self.late(state, reply, start.centers))
            state = self.regroup(state, found, reply, cohort.rng)
        if not state.means.numel():  # before the first clustering there is one cluster
            return averaged(state, reply, torch.zeros_like(reply.ids), weigh(reply, self.weights))
        placed = state.labels.has(reply.ids)  # who could not be represented has no say in a cluster
        return averaged(state, reply, state.labels.at(reply.ids, default=0), weigh(reply, self.weights) * placed)

    def early(self, state: Kit, ask: Ask) -> Represented | None:
        """Representations that do not come out of training."""
        if self.representation == "losses":
            scored = ask(Score(state.centers))
            return Represented(scored.ids, scored.scores)
        if self.representation == "gradient":
            reply = ask(Fit(All(state.anchor), local=GRADIENT))
            none = state.anchor.new_empty(0, len(state.features))
            return Represented(reply.ids, none if reply.theta is None else state.represent(state.anchor - reply.theta))
        return None

    def late(self, state: Kit, reply: Fitted, starts: Tensor) -> Tensor:
        """Representations that do: the model, or how it changed."""
        moved = reply.models - starts[reply.chosen] if self.representation == "update" else reply.models
        return state.represent(moved)

    def regroup(self, state: Kit, found: Represented, reply: Fitted, rng: np.random.Generator) -> Kit:
        """New clusters under old numbers where they overlap, and room for those without."""
        both = torch.isin(found.ids, reply.ids)
        points, ids = found.points[both], found.ids[both]
        if not len(ids):
            return state
        weights = weigh(reply, self.clustering_weights)[torch.isin(reply.ids, ids)]
        labels, limit = self.cluster(points, weights, rng), self.limit()
        before, known = state.labels.at(ids, default=-1), len(state.labels.ids) > 0
        if known and self.clustering != "argmin":  # a row of least loss has its number already
            means = centroids(points, labels, weights, points[: int(labels.max()) + 1])
            far = torch.stack([(means - m).square().sum(1) for m in state.means], 1)
            labels = renumber(labels, before, state.labels.values.unique(), limit, far)
        k = max(int(labels.max()) + 1, len(state.centers), limit or 0)
        extra = state.centers.mean(0, keepdim=True).repeat(k - len(state.centers), 1)
        old = state.means if state.means.numel() else points.new_zeros(0, points.shape[1])
        room = torch.cat([old, points.mean(0, keepdim=True).repeat(k - len(old), 1)])
        unchanged = state.unchanged + 1 if known and torch.equal(before, labels) else 0
        return dataclasses.replace(
            state,
            centers=torch.cat([state.centers, extra]),
            labels=state.labels.put(ids, labels),
            means=mean_by(labels, points, weights, empty=room),
            unchanged=unchanged,
            done=self.when == "once" or (self.when == "stable" and unchanged >= self.patience),
        )

    def limit(self) -> int | None:
        """The most clusters there can be, where that is given."""
        by_number = self.clustering == "kmeans" or (self.clustering == "agglomerative" and self.threshold is None)
        return self.k if by_number and isinstance(self.k, int) else None

    def cluster(self, points: Tensor, weights: Tensor, rng: np.random.Generator) -> Tensor:
        """Labels (n,) by the chosen distance and clustering."""
        if self.clustering == "argmin":
            return points.argmin(1)
        if self.clustering == "merge":
            return greedy_merge(cosines(points), self.threshold or 0.0)
        if self.clustering == "bipartition":
            return split_all(cosines(points), self.threshold or 0.0)
        fixed = self.threshold is not None and self.clustering == "agglomerative"
        unit = functional.normalize(points) if self.distance != "euclidean" else points
        k = 1 if fixed else count(unit, self.k, weights, rng)
        if self.clustering == "kmeans":
            return fresh_kmeans(edc_features(points, k) if self.distance == "edc" else unit, k, weights, rng)
        match self.distance:
            case "madc":
                matrix = madc(points)
            case "edc":
                matrix = distances(edc_features(points, k if not fixed else len(points)), "euclidean")
            case "cosine" | "euclidean":
                matrix = distances(points, self.distance)
        return agglomerate(matrix, k=k, threshold=self.threshold if fixed else None, linkage=self.linkage)

    def predictor(self, state: Kit) -> Evaluate:
        """A client predicts with its cluster's model (before the first clustering: with the one there is)."""
        return state.predictor() if state.means.numel() else Evaluate((All(state.centers[0]),))

    def admit(self, state: Kit, cohort: Cohort, ask: Ask) -> Kit:
        """A newcomer is represented as the others were and joins the nearest mean representation."""
        unmet = state.unmet(cohort.ids)
        if not len(unmet) or not state.means.numel():
            return state
        points, ids = self.represent_new(state, unmet, ask)
        if not len(ids):
            return state
        by_angle = self.distance != "euclidean" or self.clustering in ("merge", "bipartition")
        if self.clustering == "argmin":
            labels = points.argmin(1)
        else:
            labels = cosines(points, state.means).argmax(1) if by_angle else nearest(points, state.means)
        return assigned(state, ids, labels)

    def represent_new(self, state: Kit, unmet: Tensor, ask: Ask) -> tuple[Tensor, Tensor]:
        """What stands for newcomers, and which of them answered."""
        if self.representation == "losses":
            scored = ask(Score(state.centers, on=unmet))
            return scored.scores, scored.ids
        if self.representation == "gradient":
            reply = ask(Fit(All(state.anchor), local=GRADIENT, on=unmet))
            points = None if reply.theta is None else state.represent(state.anchor - reply.theta)
        else:
            start = state.start(unmet)
            reply = ask(Fit(start, local=self.local, on=unmet))
            points = None if reply.theta is None else self.late(state, reply, start.centers)
        return (state.means[:0], reply.ids[:0]) if points is None else (points, reply.ids)
