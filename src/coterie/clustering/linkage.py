"""Clusters of a matrix of distances or similarities: hierarchical clustering, bipartitions, connected pairs."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clustering.kmeans import by_first_member

Linkage: TypeAlias = Literal["single", "complete", "average", "ward"]


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


def elbow(distance: Tensor) -> float:
    """Where the sorted distances to the nearest neighbour begin to rise: the point furthest below the straight line
    from the least to the largest (Kneedle, of a curve that is convex and rises). Distances (n, n)."""
    n = len(distance)
    nearest = (distance + torch.diag(distance.new_full((n,), torch.inf))).amin(1).sort().values
    rise = nearest[-1] - nearest[0]
    if n < 2 or float(rise) == 0:
        return float(nearest[-1].nan_to_num(posinf=0.0))
    below = torch.linspace(0, 1, n, dtype=nearest.dtype) - (nearest - nearest[0]) / rise
    return float(nearest[int(below.argmax())])


def _cut(tree: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Exactly k clusters, also if merges tie (fcluster would give fewer)."""
    n = len(tree) + 1
    members = {i: [i] for i in range(n)}
    for step, row in enumerate(tree[: n - k]):
        members[n + step] = members.pop(int(row[0])) + members.pop(int(row[1]))
    labels = np.empty(n, dtype=np.int64)
    for label, cluster in enumerate(members.values()):
        labels[cluster] = label
    return labels


def bipartition(similarity: Tensor, linkage: Literal["single", "complete"] = "single") -> tuple[Tensor, float]:
    """Split in two (labels 0 and 1) such that the largest similarity of a crossing pair is least; returns it too.

    "single" is the exact minimiser (Sattler et al., Algorithm 1); "complete" gives more even parts.
    """
    labels = agglomerate(1 - similarity, k=2, linkage=linkage)
    crossing = similarity[labels == 0][:, labels == 1]
    return labels, float(crossing.max()) if crossing.numel() else 1.0


def split_all(similarity: Tensor, threshold: float) -> Tensor:
    """Labels (n,) of repeated bipartition, while no crossing pair is more similar than the threshold."""
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
    """Labels (n,) of the connected components of all pairs that are more similar than tau.

    A tau of -1 merges everything, even opposite vectors.
    """
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(((similarity > tau) | (tau <= -1)).numpy(), directed=False)
    return by_first_member(torch.from_numpy(labels.astype(np.int64)))
