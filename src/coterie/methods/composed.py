"""WeCFL's framework as a kit: a representation, a distance, a clustering, weights, and when to cluster.

Ma et al. 2022 (Eq. 3): any clustered method is a lower level that groups representations g_i by a distance d, and an
upper level that trains one model per group. FeSEM is (all, euclidean, kmeans, equal, every); WeCFL is (classifier,
euclidean, kmeans, size, every); FL+HC is (update, euclidean, agglomerative, size, once); FedGroup's grouping is
(update, edc, kmeans, equal, once); StoCFL's is (gradient, cosine, merge); IFCA's is (losses, argmin).
The server sees representations and means of models. Newcomers join the nearest mean representation, or by loss.
`when: drift` clusters once; then clients whose data has changed (see `drift_alarm`) move to the model that fits, anew
where none does. A client's two halves are measured from the first model at its first visit after the clustering, and
again where its loss has risen a little: has its data changed since (see `clustering.halves`)?
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor
from torch.nn import functional

from coterie.clustering.averaging import Weighting, mean_by, weigh
from coterie.clustering.halves import has_changed
from coterie.clustering.kmeans import centroids, fresh_kmeans, nearest, renumber
from coterie.clustering.linkage import Linkage, agglomerate, greedy_merge, split_all
from coterie.clustering.similarity import cosines, distances, edc_features, madc
from coterie.core.errors import NoAnswerError
from coterie.core.local import GRADIENT, Local
from coterie.core.model import Model
from coterie.core.parts import Part
from coterie.core.references import All, Pick
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import Evaluate, Fit, Fitted, Score
from coterie.methods.contract import Ask, admitted
from coterie.methods.drift_alarm import alarmed, drift_line, found_elsewhere, suspected
from coterie.methods.hard_clusters import Clusters, assigned, averaged, by_angle, joined_by_loss
from coterie.methods.k import LOOK, SKETCH, ClusterCount, K


@dataclasses.dataclass(frozen=True, eq=False)
class Kit(Clusters):
    """Clusters, the mean representation of each, and how long they have not changed."""

    means: Tensor  # (K, d)
    anchor: Tensor  # (P,) where gradients are taken
    unchanged: int  # clusterings in a row
    done: bool  # no more clustering
    last: ByClient = dataclasses.field(default_factory=lambda: ByClient.empty(torch.float32))  # see `drift_alarm`
    worst: float = 0.0  # the highest mean loss of a round since the clustering
    alarmed: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    looks: ByClient = dataclasses.field(default_factory=lambda: ByClient.empty(torch.float32))
    of_clusters: ClassVar[tuple[str, ...]] = ("centers", "means")

    def measured_from(self) -> Tensor:
        """Where gradients are taken."""
        return self.anchor[None]

    @staticmethod
    def fresh(centers: Tensor, features: Tensor) -> Kit:
        """The state before the first clustering."""
        return Kit(centers, ByClient.empty(), features, centers.new_empty(0, 0), centers[0], 0, False)

    def of_least_loss(self, losses: Represented, anew: bool) -> Pick:
        """The row that was just found best for each client; unless `anew`, a client keeps the row it has."""
        best, own = losses.points.argmin(1), self.labels.at(losses.ids, default=-1)
        return Pick(self.centers, ByClient(losses.ids, best if anew else torch.where(own < 0, best, own)))

    def losses(self, ask: Ask, on: Tensor | None = None) -> Represented:
        """The loss of each center on each of these clients' data."""
        scored = ask(Score(self.centers, on=on))
        return Represented(scored.ids, scored.scores)

    def gradients(self, ask: Ask, on: Tensor | None = None) -> Represented:
        """The gradient of the anchor on each of these clients' data."""
        reply = ask(Fit(All(self.anchor), local=GRADIENT, keep=False, on=on))
        return Represented(reply.ids, self.represent(self.anchor - reply.models))

    def models(self, reply: Fitted, since: Pick | None) -> Represented:
        """Clients represented by their models, or by their updates since where they started."""
        moved = reply.models if since is None else reply.models - since.centers[reply.chosen]
        return Represented(reply.ids, self.represent(moved))


@dataclasses.dataclass(frozen=True, eq=False)
class Represented:
    """The representation of each of these clients."""

    ids: Tensor
    points: Tensor  # (n, d)

    def of(self, ids: Tensor) -> Represented:
        """Only those of these clients."""
        both = torch.isin(self.ids, ids)
        return Represented(self.ids[both], self.points[both])


@dataclass(frozen=True, config=STRICT)
class Composed:
    """Your own clustered method: representation x distance x clustering x weights x when."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187 (section 5)"

    distance: Literal["euclidean", "cosine", "edc", "madc"] = "euclidean"
    clustering: Literal["kmeans", "agglomerative", "merge", "bipartition", "argmin"] = "kmeans"
    k: ClusterCount = 4
    threshold: float | None = None  # agglomerative: a distance; merge, bipartition: a cosine
    linkage: Linkage = "complete"
    representation: Part | Literal["update", "gradient", "losses"] = "all"  # a part of the model, or what it says
    clustering_weights: Weighting = "size"
    weights: Weighting = "size"
    when: Literal["every", "once", "stable", "drift"] = "every"  # drift: see above
    patience: PositiveInt = 3  # "stable": clusterings without a change before they end
    first: NonNegativeInt = 0  # rounds of FedAvg before the first clustering
    local: Local = Local()

    @model_validator(mode="after")
    def _fits_together(self) -> Composed:
        if self.by_cosine and self.threshold is None:
            raise ValueError(
                f"clustering '{self.clustering}' needs a threshold: the cosine above which clients are similar"
            )
        if self.by_cosine and self.distance not in ("cosine", "euclidean"):
            raise ValueError(f"clustering '{self.clustering}' uses cosines; distance '{self.distance}' does not apply")
        if self.distance == "madc" and self.clustering != "agglomerative":
            raise ValueError("distance 'madc' is a matrix, not coordinates: use clustering 'agglomerative'")
        if self.linkage == "ward" and self.distance != "euclidean":
            raise ValueError("linkage 'ward' is defined for distance 'euclidean' only")
        if self.clustering == "argmin" and self.representation != "losses":
            raise ValueError("clustering 'argmin' is that of the least loss: use representation 'losses'")
        return self

    @property
    def by_cosine(self) -> bool:
        """Whether the clustering uses cosines only."""
        return self.clustering in ("merge", "bipartition")

    @property
    def limit(self) -> int | None:
        """The most clusters there can be, where that is given."""
        by_number = self.clustering == "kmeans" or (self.clustering == "agglomerative" and self.threshold is None)
        return self.k if by_number and isinstance(self.k, int) else None

    @property
    def by_loss(self) -> bool:
        """Whether a newcomer joins the center of least loss."""
        return self.clustering == "argmin" or self.representation not in ("gradient", "losses")

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Kit:
        """One common start, or K random models to be chosen from by loss."""
        K(self.k).check(roster)
        match self.representation:
            case "losses":
                return Kit.fresh(K(self.k).random_models(model, roster, rng), model.part("all"))
            case "update" | "gradient":
                return Kit.fresh(model.init(rng)[None], model.part("all"))
            case part:
                return Kit.fresh(model.init(rng)[None], model.part(part))

    def round(self, state: Kit, cohort: Cohort, ask: Ask) -> Kit:
        """Represent and cluster, where it is time to; train; average what is together."""
        by_number = self.representation != "losses" and not self.by_cosine and self.threshold is None
        if self.k == "auto" and by_number and cohort.round >= self.first:
            k = K(self.k).settled(state, self.local, cohort, ask)
            return dataclasses.replace(self, k=k).round(state, cohort, ask)
        enough = self.when == "every" or not K(self.k).too_few(cohort)
        clustering = enough and not state.done and cohort.round >= self.first
        if self.representation == "losses":
            state = K(self.k).chosen(state, self.local, cohort, ask)
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

    def cluster(self, points: Tensor, weights: Tensor, cohort: Cohort) -> Tensor:
        """Labels (n,) by the chosen distance and clustering."""
        if self.clustering == "argmin":
            return points.argmin(1)
        if self.clustering == "merge":
            return greedy_merge(cosines(points), self.threshold or 0.0)
        if self.clustering == "bipartition":
            return split_all(cosines(points), self.threshold or 0.0)
        fixed = self.threshold is not None and self.clustering == "agglomerative"
        unit = functional.normalize(points) if self.distance != "euclidean" else points
        k = 1 if fixed else K(self.k).of(unit, weights, cohort)
        if self.clustering == "kmeans":
            return fresh_kmeans(edc_features(points, k) if self.distance == "edc" else unit, k, weights, cohort.rng)
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
        """A newcomer joins the nearest mean representation, or the center of least loss."""
        unmet = state.unmet(cohort.ids)
        if not len(unmet) or not state.means.numel():
            return state
        if self.by_loss or (found := self.early(state, ask, unmet)) is None:
            return joined_by_loss(state, unmet, ask)
        if self.distance != "euclidean" or self.by_cosine:
            return by_angle(state, found.ids, found.points, state.means, ask)
        return assigned(state, found.ids, nearest(found.points, state.means))


def overlapping(state: Kit, found: Represented, labels: Tensor, weights: Tensor, limit: int | None) -> Tensor:
    """The labels of new clusters, renumbered to overlap most with the old ones; others get new numbers."""
    if not len(state.labels.ids):
        return labels
    means = centroids(found.points, labels, weights, found.points[: int(labels.max()) + 1])
    far = torch.stack([(means - m).square().sum(1) for m in state.means], 1)
    before = state.labels.at(found.ids, default=-1)
    return renumber(labels, before, state.labels.values.unique(), limit, far)


def regrouped(state: Kit, found: Represented, labels: Tensor, weights: Tensor, limit: int | None) -> Kit:
    """Put these clients into these clusters, with rows for new clusters."""
    points, before = found.points, state.labels.at(found.ids, default=-1)
    k = max(int(labels.max()) + 1, len(state.centers), limit or 0)
    extra = state.centers.mean(0, keepdim=True).repeat(k - len(state.centers), 1)
    old = state.means if state.means.numel() else points.new_zeros(0, points.shape[1])
    room = torch.cat([old, points.mean(0, keepdim=True).repeat(k - len(old), 1)])
    same = len(state.labels.ids) > 0 and torch.equal(before, labels)
    return dataclasses.replace(
        state,
        centers=torch.cat([state.centers, extra]),
        labels=state.labels.put(found.ids, labels),
        means=mean_by(labels, points, weights, empty=room),
        unchanged=state.unchanged + 1 if same else 0,
    )


def averaged_by_place(state: Kit, reply: Fitted, weights: Tensor) -> Kit:
    """The upper level: each cluster's mean. Clients without a representation have weight zero."""
    if not state.means.numel():  # before the first clustering there is one cluster
        return averaged(state, reply, torch.zeros_like(reply.ids), weights)
    placed = state.labels.has(reply.ids)
    return averaged(state, reply, state.labels.at(reply.ids, default=0), weights * placed)


def looked(state: Kit, ids: Tensor, local: Local, ask: Ask) -> ByClient:
    """The updates on both halves (n, 2, d) of those of these clients that answer, from the first model."""
    size = min(SKETCH, len(state.anchor))
    local = dataclasses.replace(local, epochs=None, steps=LOOK, keep_optimizer=False)
    tasks = [
        Fit(All(state.anchor), local=local, half=half, sketch=size, send=False, keep=False, on=ids) for half in (0, 1)
    ]
    try:
        replies = ask(tasks) if len(ids) else []
    except NoAnswerError:
        replies = []
    sent = [r.sketch for r in replies if isinstance(r, Fitted) and r.sketch is not None]
    return (
        ByClient(replies[0].ids, torch.stack(sent, 1))
        if sent
        else ByClient(ids[:0], state.anchor.new_empty(0, 2, size))
    )


def changed_since(state: Kit, local: Local, ask: Ask, ids: Tensor) -> Tensor:
    """Those of these clients whose data has changed since they were looked at."""
    now = looked(state, ids[state.looks.has(ids)], local, ask)
    return now.ids[has_changed(state.looks.at(now.ids), now.values)]


def followed(state: Kit, reply: Fitted, local: Local, cohort: Cohort, ask: Ask) -> tuple[Kit, Tensor]:
    """The state in which clients that another model fits better have moved there, and whose models count (n,).

    Where no model fits a client's data in two visits in a row, the next round clusters anew.
    """
    here = torch.ones(len(reply.ids), dtype=torch.bool)
    if not state.done:  # not clustered yet
        return state, here
    alarm = alarmed(state.last, reply.ids, reply.loss, state.worst) & state.labels.has(reply.ids)
    rising = suspected(state.last, reply.ids, reply.loss, state.worst) & state.labels.has(reply.ids) & ~alarm
    losses = state.last.put(reply.ids[~alarm], reply.loss[~alarm].float())
    worst = max(state.worst, float(reply.loss.mean()))
    who, asked = reply.ids[alarm], int(alarm.sum() + rising.sum())
    changed = partial(changed_since, state, local, ask)
    moved = found_elsewhere(state.centers, state.labels, who, reply.ids[rising], ask, changed)
    left = who[~torch.isin(who, moved.ids)]
    again = left[torch.isin(left, state.alarmed)]
    if len(moved.ids):
        cohort.counted.append(
            drift_line(moved.ids, len(state.centers), asked, "another cluster's model fits, they move")
        )
    if len(again):
        cohort.counted.append(drift_line(again, len(state.centers), asked, "no model fits, all are clustered anew"))
    stay = losses.ids[~torch.isin(losses.ids, moved.ids)]
    kept = state.looks.only(state.looks.ids[~torch.isin(state.looks.ids, moved.ids)])
    fresh = looked(state, reply.ids[~kept.has(reply.ids)], local, ask)
    state = dataclasses.replace(
        state,
        labels=state.labels.put(moved.ids, moved.values),
        last=losses.only(stay[:0] if len(again) else stay),
        worst=worst,
        alarmed=left,
        done=not len(again),
        looks=kept.put(fresh.ids, fresh.values),
    )
    return state, here & ~torch.isin(reply.ids, moved.ids)
