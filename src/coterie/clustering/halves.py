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
