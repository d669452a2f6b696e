"""What two halves of clients' data say beside the number of clusters: how sure it is, and what it is worth.

Client i gives two updates a_i = u_i + e_i and b_i = u_i + f_i. The noise of the halves is independent, so a product of
a measure of the a's and one of the b's has no noise in its mean. Everything here rests on that (`clustering.halves`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.halves import Floats, Ints, halves_evidence, labels_of, ward

MOST = 150  # clients in a resample; with more clients shares are those of a federation of so many
SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the variance of updates, tried by `visible`


@dataclass(frozen=True)
class Variances:
    """Mean squares of updates, over clients weighted by their samples, free of noise but for the noise itself."""

    common: float  # the squared length of what all updates have in common
    total: float  # of the true differences between clients
    within: float  # of those that remain within k clusters found from one half
    noise: float  # of the update of one half
    clients: int
    k: int

    @property
    def share(self) -> float:
        """How much of the differences between updates is real: 0 sampling noise only, 1 no noise."""
        total = max(self.total, 0.0)
        return total / (total + self.noise) if total + self.noise > 0 else 0.0

    @property
    def errors(self) -> Errors:
        """The expected squared distance between a client's true update and what each kind of model offers it."""
        whole = self.noise / 2  # an update of all samples has twice as many as one of a half
        one = max(self.total, 0.0) + whole / self.clients
        clusters = max(self.within, 0.0) + self.k * whole / self.clients
        both = clusters * whole / (clusters + whole) if clusters + whole > 0 else 0.0
        return Errors(one, clusters, both, whole)


@dataclass(frozen=True)
class Errors:
    """Of the update that a client gets, with different kinds of models."""

    one: float  # the mean of everyone
    clusters: float  # the mean of its cluster
    personal: float  # its own, combined with its cluster's by their precision
    local: float  # its own alone


@dataclass(frozen=True)
class Resampled:
    """How much better k clusters predict a client's other half than one, and how sure their number is."""

    r2: float
    low: float  # of a 95 % interval over clients
    high: float
    counts: tuple[tuple[int, float], ...]  # (number of clusters, share of the resamples), the most frequent first

    def share(self, k: int) -> float:
        """The share of the resamples that show k clusters."""
        return dict(self.counts).get(k, 0.0)


@dataclass(frozen=True, eq=False)
class Margins:
    """How clearly each client is in its cluster."""

    distance: Floats  # (n,) squared, to the mean of the others of its cluster, free of noise; NaN where it is alone
    margin: (
        Floats  # (n,) to the boundary of the runner-up, in deviations of the client's noise; NaN where there is none
    )
    runner_up: Ints  # (n,) -1 where there is none


def variances(a: Tensor, b: Tensor, n: Tensor, k: int) -> Variances:
    """The variances that measures a and b (clients, d) on two halves of n samples each show."""
    first, second, weights = _arrays(a, b, n)
    share = weights / weights.sum()
    within = 0.0
    for half in (first, second):
        labels = labels_of(ward(half, weights), k)
        apart = (first - _means(first, weights, labels)) * (second - _means(second, weights, labels))
        within += float(share @ apart.sum(1)) / 2
    mean_a, mean_b = share @ first, share @ second
    return Variances(
        common=float(mean_a @ mean_b),
        total=float(share @ ((first - mean_a) * (second - mean_b)).sum(1)),
        within=within,
        noise=float(share @ ((first - second) ** 2).sum(1)) / 2,
        clients=len(weights),
        k=k,
    )


def resampled(a: Tensor, b: Tensor, n: Tensor, k: int, rng: np.random.Generator, draws: int = 100) -> Resampled:
    """R2 of k clusters with a 95 % interval, and how often resampled clients show each number of clusters.

    Everything is found anew in each resample; a client that is drawn twice counts twice. Resamples have fewer different
    clients, so they lean towards fewer clusters and a lower R2: only the spread of their R2 makes the interval.
    """
    many, size = len(n), min(len(n), MOST)
    counts: Counter[int] = Counter()
    spread = []
    for _ in range(draws):
        drawn, often = np.unique(rng.integers(many, size=size), return_counts=True)
        these = torch.from_numpy(drawn)
        found = halves_evidence(a[these], b[these], n[these] * torch.from_numpy(often))
        counts[found.k] += 1
        spread.append(found.r2(min(k, len(drawn))))
    r2 = halves_evidence(a, b, n).r2(k)
    low, high = (np.quantile(spread, (0.025, 0.975)) - np.mean(spread)) * math.sqrt(size / many)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Resampled(r2, r2 + float(low), r2 + float(high), tuple((k, count / draws) for k, count in ordered))


def margins(a: Tensor, b: Tensor, n: Tensor, labels: Tensor) -> Margins:
    """How far each client is from its own cluster and from the next one; its own mean is that of the others there."""
    first, second, weights = _arrays(a, b, n)
    where = labels.numpy()
    k, many = int(where.max()) + 1, len(where)
    share = np.zeros((k, many))
    share[where, np.arange(many)] = weights
    sums = share.sum(1)
    distance, margin, runner_up = np.full(many, math.nan), np.full(many, math.nan), np.full(many, -1)
    means = [share @ half / sums[:, None] for half in (first, second)]
    for i, own in enumerate(where.tolist()):
        if sums[own] - weights[i] <= 0:
            continue
        centers = [mean.copy() for mean in means]
        for center, half in zip(centers, (first, second), strict=True):
            center[own] = (sums[own] * center[own] - weights[i] * half[i]) / (sums[own] - weights[i])
        apart = ((first[i] - centers[0]) * (second[i] - centers[1])).sum(1)
        distance[i] = apart[own]
        if k > 1:
            next_ = int(np.argmin(np.where(np.arange(k) == own, np.inf, apart)))
            runner_up[i] = next_
            direction = (centers[0][own] - centers[0][next_] + centers[1][own] - centers[1][next_]) / 2
            noise = (weights * ((first - second) @ direction) ** 2).mean() / (4 * weights[i])
            lead = float(apart[next_] - apart[own])
            margin[i] = lead / (2 * math.sqrt(noise)) if noise > 0 else math.copysign(math.inf, lead)
    return Margins(distance, margin, runner_up)


def visible(a: Tensor, b: Tensor, n: Tensor, rng: np.random.Generator, draws: int = 10) -> float:
    """The least variance between two equal clusters that would be seen in noise like this; infinite if none would.

    Two clusters are put into noise made of the halves' differences, and `halves_evidence` must find more than one
    cluster in four of five tries. They differ in a direction in which the noise is large, too: the harder case.
    """
    if len(n) > MOST:
        drawn = torch.from_numpy(rng.choice(len(n), MOST, replace=False))
        a, b, n = a[drawn], b[drawn], n[drawn]
    first, second, weights = _arrays(a, b, n)
    noise = (first - second) * np.sqrt(weights / 2)[:, None]
    size = float((noise**2).sum() / weights.sum())
    if size == 0:
        return 0.0
    low, high = 0, len(SHARES)
    while low < high:
        middle = (low + high) // 2
        seen = sum(_planted(noise, weights, size, SHARES[middle], rng) for _ in range(draws))
        low, high = (low, middle) if seen >= 0.8 * draws else (middle + 1, high)
    return size * SHARES[low] / (1 - SHARES[low]) if low < len(SHARES) else math.inf


def _planted(noise: Floats, weights: Floats, size: float, share: float, rng: np.random.Generator) -> bool:
    """Whether two clusters that make up this share of the variance of updates are seen."""
    many = len(weights)

    def half() -> Floats:
        signs = rng.choice([-1.0, 1.0], many)
        return noise[rng.permutation(many)] * (signs / np.sqrt(weights))[:, None]

    direction = rng.normal(size=many) @ noise
    direction *= math.sqrt(size * share / (1 - share)) / np.linalg.norm(direction)
    true = np.where(rng.permutation(many) % 2, 1.0, -1.0)[:, None] * direction
    first, second = torch.from_numpy(true + half()), torch.from_numpy(true + half())
    return halves_evidence(first, second, torch.from_numpy(weights)).k > 1


def heights(tree: Sequence[tuple[int, int]], points: Tensor, n: Tensor) -> tuple[float, ...]:
    """What each merge of Ward's tree adds to the squared distances from the clusters' means."""
    means, weight = points.double().numpy().copy(), n.double().numpy().copy()
    root = list(range(len(weight)))
    found = []
    for low, high in tree:
        i, j = _top(root, low), _top(root, high)
        both = weight[i] + weight[j]
        found.append(float(weight[i] * weight[j] / both * ((means[i] - means[j]) ** 2).sum()))
        means[i] = (weight[i] * means[i] + weight[j] * means[j]) / both
        weight[i], root[j] = both, i
    return tuple(found)


def _top(root: list[int], point: int) -> int:
    while root[point] != point:
        point = root[point]
    return point


def _arrays(a: Tensor, b: Tensor, n: Tensor) -> tuple[Floats, Floats, Floats]:
    return a.double().numpy(), b.double().numpy(), n.double().numpy()


def _means(points: Floats, weights: Floats, labels: Ints) -> Floats:
    """The mean of each point's cluster (n, d)."""
    share = np.zeros((int(labels.max()) + 1, len(labels)))
    share[labels, np.arange(len(labels))] = weights
    return np.asarray((share @ points / share.sum(1, keepdims=True))[labels])
