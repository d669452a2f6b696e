"""Weighted k-means on (n, d) arrays, and which number a cluster gets.

The lowest index wins a tie, an empty cluster keeps its center, and clusters that are found again keep the numbers of
those that they continue.
"""

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


def match_labels(
    points: Tensor, labels: Tensor, weights: Tensor, centers: Tensor, absent: Tensor | None = None
) -> Tensor:
    """Renumber clusters by a one-to-one matching to the nearest previous centers.

    absent: numbers of clusters without members in this round. A cluster gets one of these only if no other center is
    nearer. So a cluster that was found in two parts does not take over the model of absent clients.
    """
    from scipy.optimize import linear_sum_assignment

    found, labels = labels.unique(return_inverse=True)  # a number without members must not be matched to a center
    new = centroids(points, labels, weights, centers[: len(found)])
    cost = torch.stack([(new - c).square().sum(1) for c in centers], 1)
    _, columns = linear_sum_assignment(cost.double().numpy())
    names = torch.from_numpy(columns)
    if absent is not None:
        names = torch.where(torch.isin(names, absent), cost.argmin(1), names)
    return names[labels]


def renumber(labels: Tensor, old: Tensor, used: Tensor, limit: int | None = None, far: Tensor | None = None) -> Tensor:
    """Renumber clusters by a one-to-one matching to the old numbers with which they share most members.

    old: the previous number of each member, -1 for new clients. used: the numbers in use, also by absent clients.
    A cluster that is not matched gets a number that is not in use. If `limit` leaves none, a part of an old cluster
    gets the old number again, so that no absent client loses its model. A cluster of new clients only gets the nearest
    number without members in this round, by `far` (found, numbers): the distances to what the numbers stood for.
    """
    from scipy.optimize import linear_sum_assignment

    found, most = int(labels.max()) + 1, max([0, *old.tolist(), *used.tolist()]) + 1
    common = torch.zeros(found, most)
    met = old >= 0
    common.index_put_((labels[met], old[met]), torch.ones(int(met.sum())), accumulate=True)
    names = torch.full((found,), -1, dtype=torch.int64)
    for row, column in zip(*linear_sum_assignment(-common.numpy()), strict=True):
        if common[row, column] > 0:
            names[row] = int(column)
    numbers = range(limit if limit is not None else most + found)
    free = [n for n in numbers if n not in {*names.tolist(), *used.tolist()}]
    newcomers = []
    for row in torch.nonzero(names < 0)[:, 0].tolist():
        if free:
            names[row] = free.pop(0)
        elif common[row].any():
            names[row] = int(common[row].argmax())
        else:
            newcomers.append(row)
    absent = [n for n in numbers if n not in names.tolist()]
    if newcomers and absent:
        cost = torch.zeros(len(newcomers), len(absent)) if far is None else far[newcomers][:, absent]
        for row, column in zip(*linear_sum_assignment(cost.numpy()), strict=True):
            names[newcomers[row]] = absent[column]
    left = torch.nonzero(names < 0)[:, 0]
    if len(left):  # more clusters of new clients than free numbers: the nearest number
        names[left] = 0 if far is None else far[left].argmin(1)
    return names[labels]


def by_first_member(labels: Tensor) -> Tensor:
    """Renumber clusters 0, 1, ... in the order in which they first occur."""
    used, places = labels.unique(return_inverse=True)
    first = torch.full((len(used),), len(labels)).scatter_reduce(0, places, torch.arange(len(labels)), "amin")
    return first.argsort().argsort()[places]


def cheapest_names(labels: Tensor, costs: Tensor) -> Tensor:
    """Renumber clusters by the one-to-one matching to columns of least total cost; costs (n, K) are of the members."""
    from scipy.optimize import linear_sum_assignment

    _, labels = labels.unique(return_inverse=True)
    by_cluster = torch.zeros(int(labels.max()) + 1, costs.shape[1], dtype=torch.float64)
    by_cluster.index_add_(0, labels, costs.double())
    _, columns = linear_sum_assignment(by_cluster.numpy())
    return torch.from_numpy(columns)[labels]
