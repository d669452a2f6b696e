"""Weighted k-means on (n, d) arrays. The lowest index wins a tie, and an empty cluster keeps its center."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.clustering.similarity import in_row_space
from coterie.core.seeds import draw_seed

CHUNK = 1 << 16  # numbers that are subtracted at a time


def nearest(points: Tensor, centers: Tensor) -> Tensor:
    """The row of the closest center (squared Euclidean) of each point; the lowest index wins a tie."""
    # Computed from the differences: the expanded form |p|^2 - 2 p.c + |c|^2 cannot separate centers that are close.
    # A few points at a time, whose differences stay in the processor's cache. (Where a point's numbers are not side by
    # side the order of a sum depends on how many points there are.)
    many = max(1, CHUNK // max(1, points.shape[1])) if points.stride(1) == 1 else max(1, len(points))
    found = [torch.stack([(some - c).square_().sum(1) for c in centers], 1) for some in points.split(many)]
    return torch.cat(found).argmin(1)


def fresh_kmeans(points: Tensor, k: int, weights: Tensor, rng: np.random.Generator, n_init: int = 10) -> Tensor:
    """Labels (n,) of weighted k-means from k-means++ starts; with fewer points than k, as many clusters as points."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    seed = draw_seed(rng) % 2**32
    k = min(k, len(points))
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than k: some clusters stay empty
        flat = in_row_space(points).numpy()
        fitted = KMeans(k, n_init=n_init, random_state=seed).fit(flat, sample_weight=weights.numpy())
    return torch.from_numpy(fitted.labels_.astype(np.int64))


def warm_kmeans(points: Tensor, centers: Tensor, weights: Tensor, max_iter: int = 300) -> Tensor:
    """Labels (n,) of weighted k-means from given centers; a center without points is left unchanged."""
    labels = nearest(points, centers)
    for _ in range(max_iter):
        centers = centroids(points, labels, weights, centers)
        moved = nearest(points, centers)
        if torch.equal(moved, labels):
            break
        labels = moved
    return labels


def centroids(points: Tensor, labels: Tensor, weights: Tensor, empty: Tensor) -> Tensor:
    """Weighted mean of each cluster's points (K, d); a cluster without points keeps its row of `empty`."""
    return mean_by(labels, points, weights, empty)
