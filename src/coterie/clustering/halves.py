"""How many clusters: every client is measured twice, on two halves of its data, and one half judges the other.

Client i gives two updates a_i and b_i that share their mean and differ by sampling noise only. Cluster by the a_i and
predict every b_i by the mean of its cluster's a_j. With too few clusters the mean is biased, with too many it averages
too little noise away, so the risk

    risk(K) = sum_i n_i |b_i - mean of a_j over i's cluster|^2

is least where the clusters are real; both directions are added up. This is cross-validation of a clustering, and it
needs no threshold: one cluster means that clients are alike, one each that they all differ. Of the numbers of
clusters whose risk is within one standard error of the least, the smallest is taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clustering.constraints import cluster_means
from coterie.core.tables import Counted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SHOWN = 12  # numbers of clusters whose share of explained risk is told
TURNS = 20  # in which clients move to the nearest mean, at most
MOST = 1000  # clients that a tree is built of; more are drawn from, and the rest join the nearest cluster


@dataclass(frozen=True, eq=False)
class Evidence:
    """What two halves say of n clients: how well 1, 2, ... clusters predict one half from the other."""

    risks: Tensor  # (n,) of 1, 2, ..., n clusters
    errors: Tensor  # (n,) the standard error, over clients, of the difference to the least risk
    tree: tuple[tuple[int, int], ...]  # of both halves together; see `ward`

    @property
    def best(self) -> int:
        """The number of clusters of least risk."""
        return int(self.risks.argmin()) + 1

    @property
    def supported(self) -> Tensor:
        """(n,) whether 1, 2, ... clusters are within one standard error of the least risk."""
        return self.risks - self.risks.min() <= self.errors

    @property
    def k(self) -> int:
        """The fewest clusters that are supported."""
        return int(self.supported.nonzero()[0]) + 1

    def r2(self, k: int) -> float:
        """The share of one cluster's risk that k clusters take away: 0 nothing to gain, 1 everything."""
        return 1 - float(self.risks[k - 1] / self.risks[0]) if float(self.risks[0]) > 0 else 0.0

    def keep_or_change(self, now: int) -> int:
        """How many clusters to have where there are `now`: it takes evidence to split, and to merge."""
        k, now = self.k, min(now, len(self.risks))
        merge = k < now and float(self.risks[k - 1]) <= float(self.risks[now - 1])
        return now if bool(self.supported[now - 1]) and not merge else k

    def labels(self, k: int) -> Tensor:
        """Who is where (n,) with k clusters, numbered by their first member."""
        return torch.from_numpy(labels_of(self.tree, k))


def halves_evidence(a: Tensor, b: Tensor, n: Tensor) -> Evidence:
    """The evidence of measures a and b (clients, d) on two halves of n samples each."""
    first, second, weights = a.double().numpy(), b.double().numpy(), n.double().numpy()
    forward = _risks(ward(first, weights), first, second, weights)
    backward = _risks(ward(second, weights), second, first, weights)
    by_client = (forward + backward) / 2  # row K - 1 has every client's risk with K clusters
    totals = by_client.sum(1)
    gaps = by_client - by_client[int(totals.argmin())]
    errors = gaps.std(1, ddof=1) * math.sqrt(len(n)) if len(n) > 1 else np.zeros(1)
    tree = ward((first + second) / 2, weights)
    return Evidence(torch.from_numpy(totals), torch.from_numpy(errors), tuple(tree))


def told(evidence: Evidence, k: int, before: int, clients: int, total: int) -> Counted:
    """What is told of a split or a merge: the share of the risk that 1, 2, ... clusters take away, and why it is k."""
    scores = tuple((j, evidence.r2(j)) for j in range(1, min(SHOWN, len(evidence.risks)) + 1))
    what = f"{before} became {k}" if before != k else f"{k}"
    gain = evidence.r2(k) - evidence.r2(min(before, len(evidence.risks)))
    better = "better" if gain >= 0 else "worse"
    why = f"{what}: one half of the clients' data predicts the other {abs(gain):.0%} {better} that way"
    return Counted(total, "halves", clients, scores, why)


def sample_of(many: int, rng: np.random.Generator, most: int = MOST) -> Tensor:
    """Positions of the clients that the evidence is computed from: all, or `most` drawn at random."""
    if many <= most:
        return torch.arange(many)
    return torch.from_numpy(np.sort(rng.choice(many, most, replace=False)))


def spread(labels: Tensor, sampled: Tensor, points: Tensor, n: Tensor) -> Tensor:
    """Labels of all points, from those of a sample, which settles first: the rest joins the nearest of its means."""
    labels = settled(labels, points[sampled], n[sampled])
    if len(sampled) == len(points):
        return labels
    found = nearest(labels, points[sampled], n[sampled], points)
    found[sampled] = labels
    return found


def settled(labels: Tensor, points: Tensor, n: Tensor) -> Tensor:
    """Everyone joins the cluster of the nearest mean until nobody moves, since a tree never takes a merge back.

    Where a cluster would be left without anybody, all stay where they are.
    """
    for _ in range(TURNS):
        moved = nearest(labels, points, n, points)
        if torch.equal(moved, labels) or len(moved.unique()) <= int(labels.max()):
            break
        labels = moved
    return labels


def nearest(labels: Tensor, points: Tensor, n: Tensor, others: Tensor) -> Tensor:
    """The cluster whose mean is nearest to each of the other points (m,); every label up to the largest is used."""
    means, _ = cluster_means(labels, points, n)
    middle = means.mean(0)  # distances are taken from here, so that none is the difference of two large numbers
    apart = (means - middle).to(others.dtype)
    return (apart.square().sum(1) - 2 * (others - middle.to(others.dtype)) @ apart.T).argmin(1)


def ward(points: Floats, weights: Floats) -> list[tuple[int, int]]:
    """Ward's tree of weighted points: the pairs of points whose clusters merge, in the order of their merging.

    A merge costs w_i w_j / (w_i + w_j) |mean_i - mean_j|^2. Nearest-neighbour chains make it quadratic in time.
    """
    many = len(points)
    weight = weights.astype(np.float64).copy()
    squares = (points**2).sum(1)
    costs = np.maximum(squares[:, None] + squares[None] - 2 * points @ points.T, 0.0)
    costs *= weight[:, None] * weight[None] / (weight[:, None] + weight[None])
    np.fill_diagonal(costs, np.inf)
    alive = np.ones(many, dtype=bool)
    merges: list[tuple[float, int, int, int]] = []  # cost, when it was found, and a point of either side
    chain: list[int] = []
    while len(merges) < many - 1:
        if not chain:
            chain.append(int(np.argmax(alive)))
        here = chain[-1]
        near = int(np.argmin(costs[here]))
        if len(chain) > 1 and costs[here, chain[-2]] <= costs[here, near]:
            near = chain[-2]
        if len(chain) < 2 or near != chain[-2]:
            chain.append(near)
            continue
        del chain[-2:]
        low, high = min(here, near), max(here, near)
        merges.append((float(costs[here, near]), len(merges), low, high))
        _merge(costs, weight, alive, low, high)
    return [(low, high) for _, _, low, high in sorted(merges)]


def _merge(costs: Floats, weight: Floats, alive: NDArray[np.bool_], low: int, high: int) -> None:
    """Lance and Williams: what the other clusters cost to merge with the union of these two, which takes `low`.

    Rows of clusters that are gone are infinite and stay so.
    """
    wl, wh = weight[low], weight[high]
    merged = ((weight + wl) * costs[low] + (weight + wh) * costs[high] - weight * costs[low, high]) / (weight + wl + wh)
    merged[[low, high]] = np.inf
    costs[low], costs[:, low] = merged, merged
    costs[high], costs[:, high] = np.inf, np.inf
    weight[low] += wh
    alive[high] = False


def labels_of(merges: Sequence[tuple[int, int]], k: int) -> Ints:
    """The tree cut into k clusters (n,), numbered by their first member."""
    many = len(merges) + 1
    root = np.arange(many)
    for low, high in merges[: many - k]:
        root[root == root[high]] = root[low]
    _, labels = np.unique(_first_member(root), return_inverse=True)
    return labels.astype(np.int64)


def _first_member(root: Ints) -> Ints:
    first: dict[int, int] = {}
    return np.array([first.setdefault(int(r), i) for i, r in enumerate(root)], dtype=np.int64)


def _risks(merges: Sequence[tuple[int, int]], by: Floats, of: Floats, weights: Floats) -> Floats:
    """Every client's risk with 1, 2, ..., n clusters, predicted `by` one half, judged on the other."""
    many = len(by)
    # The squared distance to a mean, multiplied out: a merge adds two rows and touches no client's point again.
    weight, sums = weights.copy(), weights[:, None] * by  # of each cluster, by the point it is named after
    products = sums @ of.T  # of each cluster's sum with every client
    squares = (of**2).sum(1)
    cluster = np.arange(many)  # of each client
    risks = np.empty((many, many))
    now = weights * ((of - by) ** 2).sum(1)
    risks[many - 1] = now
    for step, (low, high) in enumerate(merges):
        into, gone = cluster[low], cluster[high]
        cluster[cluster == gone] = into
        for of_clusters in (weight, sums, products):
            of_clusters[into] += of_clusters[gone]
        ids = np.flatnonzero(cluster == into)
        center = sums[into] / weight[into]
        now[ids] = weights[ids] * np.maximum(squares[ids] - 2 * products[into, ids] / weight[into] + center @ center, 0)
        risks[many - 2 - step] = now
    return risks


# ------------------------------------------------------------------------- how sure the number is, and what it is worth

# Client i gives two updates a_i = u_i + e_i and b_i = u_i + f_i. The noise of the halves is independent, so a product
# of a measure of the a's and one of the b's has no noise in its mean. All that follows rests on that.

RESAMPLED = 150  # clients in a resample; with more clients shares are those of a federation of so many
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
    def errors(self) -> ExpectedErrors:
        """The expected squared distance between a client's true update and what each kind of model offers it."""
        whole = self.noise / 2  # an update of all samples has twice as many as one of a half
        one = max(self.total, 0.0) + whole / self.clients
        clusters = max(self.within, 0.0) + self.k * whole / self.clients
        both = clusters * whole / (clusters + whole) if clusters + whole > 0 else 0.0
        return ExpectedErrors(one, clusters, both, whole)


@dataclass(frozen=True)
class ExpectedErrors:
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
    many, size = len(n), min(len(n), RESAMPLED)
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
    if len(n) > RESAMPLED:
        drawn = torch.from_numpy(rng.choice(len(n), RESAMPLED, replace=False))
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


# --------------------------------------------------------------------------------------- has a client's data changed?

# Two halves of it then and two halves now answer, each pair from the same model. a and b are a client's updates on two
# halves of its data, a' and b' those of a later round, from the same model with as many steps; u and u' are what they
# would be without noise. The noise of a and a' is independent of that of b and b', so
#
#     <a' - a, b' - b>
#
# is an unbiased estimate of |u' - u|^2, and its mean is 0 where the data stays as it is. It is compared with the noise
# of the update on all of a client's data, (a + b) / 2, whose variance (|a - b|^2 + |a' - b'|^2) / 8 estimates: data has
# changed that moves the update by more than another sample of the same data would. There is no threshold to be told.
#
# False alarms, if all four halves are fresh samples of the same distribution and the noise is normal with the same
# variance in m directions, of 400,000 draws: 32 % (m = 4), 24 % (10), 16 % (20), 6 % (50), 1 % (100). Where the samples
# have stayed, a' - a is what the order of training makes of them, and there were none.


def has_changed(then: Tensor, now: Tensor) -> Tensor:
    """Which of these clients' data has changed (n,), by the updates on both halves (n, 2, d) then and now."""
    return moved_by(then, now) > noise_of(then, now)


def moved_by(then: Tensor, now: Tensor) -> Tensor:
    """An unbiased estimate of how far each client's update has moved, squared (n,); by noise it may be negative."""
    steps = (now - then).double()
    return (steps[:, 0] * steps[:, 1]).sum(1)


def noise_of(then: Tensor, now: Tensor) -> Tensor:
    """The variance of the noise of each client's update, from how far its halves are apart at both times (n,)."""
    then_apart, now_apart = ((pair[:, 0] - pair[:, 1]).double().square().sum(1) for pair in (then, now))
    return (then_apart + now_apart) / 8
