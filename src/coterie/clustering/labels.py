"""Which number a cluster gets: clusters found again keep the numbers of the clusters they continue."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.clustering.kmeans import centroids


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
