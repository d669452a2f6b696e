"""Clustering as pure functions on (n, d) arrays: ties, empty clusters and label switching are decided here."""

from __future__ import annotations

import warnings
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.core.seeds import draw_seed

Metric: TypeAlias = Literal["euclidean", "cosine", "manhattan"]
Linkage: TypeAlias = Literal["single", "complete", "average", "ward"]
CountRule: TypeAlias = Literal["auto", "silhouette", "gap"]

COLUMNS = 4096  # of a wide matrix that are in double precision at a time


def nearest(points: Tensor, centers: Tensor) -> Tensor:
    """The row of the closest center (squared Euclidean) of each point; the lowest index wins a tie."""
    # Distances from the differences themselves: the expanded form loses what tells two close centers apart.
    return torch.stack([(points - c).square().sum(1) for c in centers], 1).argmin(1)


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
    """Labels (n,) of weighted k-means from given centers; a center nobody is closest to stays where it is."""
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


# ---------------------------------------------------------------------------------- similarity and distance


def gram(points: Tensor, others: Tensor | None = None) -> Tensor:
    """Inner products (n, m) in double precision, a few columns at a time: the points are never copied whole."""
    others = points if others is None else others
    pairs = zip(points.split(COLUMNS, 1), others.split(COLUMNS, 1), strict=True)
    start = torch.zeros(len(points), len(others), dtype=torch.float64)
    return sum((a.double() @ b.double().T for a, b in pairs), start)


def squares(points: Tensor) -> Tensor:
    """Squared lengths (n,) in double precision."""
    start = torch.zeros(len(points), dtype=torch.float64)
    return sum((part.double().square().sum(1) for part in points.split(COLUMNS, 1)), start)


def cosines(points: Tensor, others: Tensor | None = None) -> Tensor:
    """Cosine similarity of every point with every other (n, m), within [-1, 1]; a zero vector is like nothing (0)."""
    dots = gram(points, others)
    if others is None:
        own = other = dots.diagonal().sqrt()
    else:
        own, other = squares(points).sqrt(), squares(others).sqrt()
    lengths = own[:, None] * other[None]
    return torch.where(lengths > 0, dots / lengths.clamp(min=1e-300), 0.0).clamp(-1, 1)


def distances(points: Tensor, metric: Metric) -> Tensor:
    """Pairwise distances (n, n), from the Gram matrix: never more than n x n numbers beside the points."""
    if metric == "cosine":
        out = 1 - cosines(points)
    elif metric == "manhattan":
        start = torch.zeros(len(points), len(points), dtype=torch.float64)
        out = sum((torch.cdist(part.double(), part.double(), p=1) for part in points.split(COLUMNS, 1)), start)
    else:
        dots = gram(points)
        lengths = dots.diagonal()
        out = (lengths[:, None] + lengths[None] - 2 * dots).clamp(min=0).sqrt()
    return out.fill_diagonal_(0)


def edc_features(updates: Tensor, m: int) -> Tensor:
    """FedGroup's decomposition (n, m): the cosine of each update with the m leading singular directions of all.

    Through the n x n Gram matrix: with G = U diag(s^2) U', the cosine of row i with direction j is s_j U_ij / |row i|.
    """
    dots = gram(updates)
    values, vectors = torch.linalg.eigh(dots)
    m = min(m, len(updates))
    values = values.where(values > _noise(dots), 0)
    leading = vectors.flip(1)[:, :m] * values.flip(0)[:m].sqrt()
    # A singular direction is known up to its sign: the largest entry is made positive.
    leading = leading * leading.gather(0, leading.abs().argmax(0, keepdim=True)).sign()
    lengths = dots.diagonal().sqrt()[:, None]
    return torch.where(lengths > 0, leading / lengths.clamp(min=1e-300), 0.0).round(decimals=9)


def madc(updates: Tensor) -> Tensor:
    """Mean absolute difference of cosines (n, n): how differently two updates look at all others (FedGroup, Eq. 7)."""
    similarity = cosines(updates)
    n = len(similarity)
    if n < 3:
        return torch.zeros(n, n, dtype=torch.float64)
    total = torch.cdist(similarity, similarity, p=1)
    # The sum leaves out z = i and z = j; S_ii is 1, but 0 for a client that has not moved.
    own = similarity.diagonal()
    total = total - (own[:, None] - similarity).abs() - (own[None] - similarity).abs()
    return (total.clamp(min=0) / (n - 2)).fill_diagonal_(0)


# ------------------------------------------------------------------------------------- clustering by distance


def agglomerate(
    distance: Tensor, *, k: int | None = None, threshold: float | None = None, linkage: Linkage = "complete"
) -> Tensor:
    """Labels (n,) of hierarchical clustering of a distance matrix, cut at k clusters or at a distance.

    Clusters are numbered by their lowest member, so that equal data gives equal labels.
    """
    if len(distance) == 1:
        return torch.zeros(1, dtype=torch.int64)
    from scipy.cluster.hierarchy import fcluster
    from scipy.cluster.hierarchy import linkage as link
    from scipy.spatial.distance import squareform

    tree = link(squareform(distance.double().numpy(), checks=False), linkage)
    cut = _cut(tree, min(k or 1, len(distance))) if threshold is None else fcluster(tree, threshold, "distance")
    return by_first_member(torch.from_numpy(np.asarray(cut, dtype=np.int64)))


def _cut(tree: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Exactly k clusters, also where merges tie (fcluster would give fewer)."""
    n = len(tree) + 1
    members = {i: [i] for i in range(n)}
    for step, row in enumerate(tree[: n - k]):
        members[n + step] = members.pop(int(row[0])) + members.pop(int(row[1]))
    labels = np.empty(n, dtype=np.int64)
    for label, cluster in enumerate(members.values()):
        labels[cluster] = label
    return labels


def by_first_member(labels: Tensor) -> Tensor:
    """The same clusters, numbered 0.. in the order in which they first occur."""
    names: dict[int, int] = {}
    return torch.tensor([names.setdefault(label, len(names)) for label in labels.tolist()], dtype=torch.int64)


def bipartition(similarity: Tensor, linkage: Literal["single", "complete"] = "single") -> tuple[Tensor, float]:
    """Two parts (labels 0 and 1) of least similarity across, and that similarity: the largest of any crossing pair.

    "single" is the exact minimiser (Sattler et al., Algorithm 1); "complete" gives more even parts.
    """
    labels = agglomerate(1 - similarity, k=2, linkage=linkage)
    crossing = similarity[labels == 0][:, labels == 1]
    return labels, float(crossing.max()) if crossing.numel() else 1.0


def split_all(similarity: Tensor, threshold: float) -> Tensor:
    """Labels (n,) after splitting in two, again and again, while no crossing pair is more alike than the threshold."""
    labels = torch.zeros(len(similarity), dtype=torch.int64)
    todo = [torch.arange(len(similarity))]
    while todo:
        rows = todo.pop()
        if len(rows) < 2:
            continue
        parts, across = bipartition(similarity[rows][:, rows])
        if across <= threshold:
            labels[rows[parts == 1]] = int(labels.max()) + 1
            todo += [rows[parts == 0], rows[parts == 1]]
    return by_first_member(labels)


def greedy_merge(similarity: Tensor, tau: float) -> Tensor:
    """Labels (n,) after merging every pair that is more similar than tau, and whatever those pairs connect.

    A tau of -1 merges everything, opposite ones too.
    """
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(((similarity > tau) | (tau <= -1)).numpy(), directed=False)
    return by_first_member(torch.from_numpy(labels.astype(np.int64)))


def in_row_space(points: Tensor) -> Tensor:
    """Coordinates (n, n) with the same distances: all that k-means needs of n points in a million dimensions."""
    if points.shape[1] <= len(points):
        return points.double()
    dots = gram(points)
    middle = dots.mean(0)
    values, vectors = torch.linalg.eigh(dots - middle[:, None] - middle[None] + middle.mean())  # of centered points
    values = values.where(values > _noise(dots), 0)
    coordinates: Tensor = vectors * values.sqrt()
    return coordinates


def _noise(dots: Tensor) -> float:
    """Eigenvalues of a Gram matrix below this are rounding: equal points must not be told apart by it."""
    return float(dots.diagonal().max()) * len(dots) * 1e-15
