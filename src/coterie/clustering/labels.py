"""Which number a cluster gets: clusters found again keep the numbers of the clusters they continue."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.clustering.kmeans import centroids


def match_labels(
    points: Tensor, labels: Tensor, weights: Tensor, centers: Tensor, absent: Tensor | None = None
) -> Tensor:
    """The same clusters under the numbers of the previous centers they lie closest to, one to one.

    `absent` are numbers whose members are all elsewhere: a cluster gets one of these only if no other center is nearer,
    so that a cluster found in two pieces does not take the model of those who are not here to keep it.
    """
    from scipy.optimize import linear_sum_assignment

    found, labels = labels.unique(return_inverse=True)  # a number that nobody has must not take a center
    new = centroids(points, labels, weights, centers[: len(found)])
    cost = torch.stack([(new - c).square().sum(1) for c in centers], 1)
    _, columns = linear_sum_assignment(cost.double().numpy())
    names = torch.from_numpy(columns)
    if absent is not None:
        names = torch.where(torch.isin(names, absent), cost.argmin(1), names)
    return names[labels]


def renumber(labels: Tensor, old: Tensor, used: Tensor, limit: int | None = None, far: Tensor | None = None) -> Tensor:
    """The same clusters under the old number they share most members with, one to one.

    `old` is -1 for members without one. A cluster that goes without gets a number that is not `used` by anyone,
    present or absent. Where `limit` leaves none, a part of an old cluster goes back to it, so that nobody absent loses
    a model; one of strangers only takes the nearest number that nobody present has, by `far`, the distance
    (found, numbers) of each cluster to what each number stood for.
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
    strangers = []
    for row in torch.nonzero(names < 0)[:, 0].tolist():
        if free:
            names[row] = free.pop(0)
        elif common[row].any():
            names[row] = int(common[row].argmax())
        else:
            strangers.append(row)
    absent = [n for n in numbers if n not in names.tolist()]
    if strangers and absent:
        cost = torch.zeros(len(strangers), len(absent)) if far is None else far[strangers][:, absent]
        for row, column in zip(*linear_sum_assignment(cost.numpy()), strict=True):
            names[strangers[row]] = absent[column]
    left = torch.nonzero(names < 0)[:, 0]
    if len(left):  # more strangers than numbers: the nearest of all
        names[left] = 0 if far is None else far[left].argmin(1)
    return names[labels]


def by_first_member(labels: Tensor) -> Tensor:
    """The same clusters, numbered 0.. in the order in which they first occur."""
    names: dict[int, int] = {}
    return torch.tensor([names.setdefault(label, len(names)) for label in labels.tolist()], dtype=torch.int64)
