"""How many clusters: rules that read it off points, and say how each number scored."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.kmeans import centroids, fresh_kmeans
from coterie.clustering.similarity import in_row_space
from coterie.core.cohort import Counted

CountRule: TypeAlias = Literal["auto", "silhouette", "gap"]

LEAST = 0.1  # the silhouette below which no split counts


def choose_k(points: Tensor, weights: Tensor, rng: np.random.Generator, rule: CountRule, most: int = 12) -> Counted:
    """A number of clusters for these points, 1..most, with the scores it was chosen by.

    silhouette (also called auto): the k of the largest mean silhouette; one cluster has none, so it is chosen only
    when no split reaches 0.1. gap: the smallest k whose gap statistic is within one standard error of the next and
    three above that of one cluster; one cluster if there is none (groups in many dimensions show only near their
    number, so the printed rule, which would stop at one there, is not asked of k = 1).
    """
    many, most = len(points), min(most, len(points) - 1)
    if most < 2:
        return Counted(1, rule, many, (), f"{many} clients are too few to be told apart")
    flat = in_row_space(points)
    return _gap(flat, weights, rng, most) if rule == "gap" else _silhouette(flat, weights, rng, rule, most)


def _silhouette(points: Tensor, weights: Tensor, rng: np.random.Generator, rule: CountRule, most: int) -> Counted:
    from sklearn.metrics import silhouette_score

    scores = {}
    for k in range(2, most + 1):
        labels = fresh_kmeans(points, k, weights, rng).numpy()
        if 1 < len(np.unique(labels)) < len(points):
            scores[k] = float(silhouette_score(points.numpy(), labels))
    best = max(scores, key=lambda k: (scores[k], -k), default=1)
    if scores.get(best, 0.0) >= LEAST:
        return Counted(best, rule, len(points), tuple(scores.items()), "the largest mean silhouette")
    return Counted(1, rule, len(points), tuple(scores.items()), f"no split has a mean silhouette of {LEAST}")


def _gap(points: Tensor, weights: Tensor, rng: np.random.Generator, most: int, draws: int = 10) -> Counted:
    """Tibshirani et al. 2001: against uniform points in the box of the principal axes."""
    low, high = points.min(0).values.numpy(), points.max(0).values.numpy()
    ks = range(1, most + 2)
    own = np.array([_log_spread(points, k, weights, rng) for k in ks])
    null = np.array(
        [
            [_log_spread(torch.from_numpy(box), k, weights, rng) for k in ks]
            for box in (rng.uniform(low, high, tuple(points.shape)) for _ in range(draws))
        ]
    )
    gap = null.mean(0) - own
    error = null.std(0) * np.sqrt(1 + 1 / draws)
    good = (k for k in range(2, most + 1) if gap[k - 1] >= gap[k] - error[k] and gap[k - 1] > gap[0] + 3 * error[k - 1])
    found = next(good, 1)
    scores = tuple((k, float(gap[k - 1])) for k in range(1, most + 1))
    why = "the smallest k whose gap is within a standard error of the next" if found > 1 else "no k stands out"
    return Counted(found, "gap", len(points), scores, why)


def _log_spread(points: Tensor, k: int, weights: Tensor, rng: np.random.Generator) -> float:
    labels = fresh_kmeans(points, k, weights, rng, n_init=3)
    means = centroids(points, labels, weights, points[: min(k, len(points))])
    spread = float((weights[:, None] * (points - means[labels]).square()).sum())
    return float(np.log(max(spread, 1e-300)))
