"""What a client's training data looks like, in a few numbers: the answers to a `Describe`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.sketch import sketch
from coterie.core.tasks import Describe

WIDEST = 3.0  # targets of a regression are in bins from -3 to 3 (they are standardised, where they are scaled at all)
RANK = 1e-6  # of the largest singular value: a direction below has no data


def described(task: Describe, features: Tensor, y: Tensor) -> Tensor:
    """A row of `task.length` numbers. features (n, ...): of a model, or the raw inputs. y is read only if need be."""
    features, y = features.cpu(), y.cpu()  # double precision is not on every device, and this is small work
    if task.kind == "labels":
        return torch.bincount(numbered(y, task.size).flatten(), minlength=task.size) / max(1, y.numel())
    points = sketch(features.reshape(len(features), -1).double(), task.size)
    measure = MEASURES[task.kind]
    parts = [measure(points, task.rank)] if task.kind != "subspace" or not task.classes else []
    if task.classes:
        labels = numbered(y, task.classes)[:, 0]
        parts += [measure(points[labels == label], task.rank) for label in range(task.classes)]
    return torch.cat(parts)


def numbered(y: Tensor, classes: int) -> Tensor:
    """The labels (n, m) as numbers below `classes`: classes modulo it, targets of a regression in bins."""
    columns = y.reshape(len(y), -1)
    if not y.is_floating_point():
        return columns.long() % classes
    bins = ((columns.double() + WIDEST) * classes / (2 * WIDEST)).floor()
    return bins.nan_to_num(0).clamp(0, classes - 1).long()


def moments(points: Tensor, _: int) -> Tensor:
    """Mean and standard deviation of each column."""
    if not len(points):
        return points.new_zeros(2 * points.shape[1])
    return torch.cat([points.mean(0), points.std(0, correction=0)])


def average(points: Tensor, _: int) -> Tensor:
    """The mean of each column."""
    return points.mean(0) if len(points) else points.new_zeros(points.shape[1])


def subspace(points: Tensor, rank: int) -> Tensor:
    """The first left singular vectors of the samples as columns, one after another; zeros where there is no more data.

    Of the two signs a vector can have, the one whose entry of largest size is positive.
    """
    found = points.new_zeros(rank, points.shape[1])
    if len(points):
        _, values, rows = torch.linalg.svd(points, full_matrices=False)
        rows = rows[:rank][values[:rank] > RANK * float(values[0])]
        largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
        found[: len(rows)] = rows * largest.sign()
    return found.flatten()


MEASURES: dict[str, Callable[[Tensor, int], Tensor]] = {"moments": moments, "sketch": average, "subspace": subspace}
