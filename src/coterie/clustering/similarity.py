"""Inner products, cosines and distances of the rows of (n, d) arrays, and angles of subspaces, in double precision."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Metric: TypeAlias = Literal["euclidean", "cosine", "manhattan"]

COLUMNS = 4096  # of a wide matrix that are converted to double precision at a time


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
    """Cosine similarity of every point with every other (n, m), within [-1, 1]; 0 for a zero vector."""
    dots = gram(points, others)
    if others is None:
        own = other = dots.diagonal().sqrt()
    else:
        own, other = squares(points).sqrt(), squares(others).sqrt()
    lengths = own[:, None] * other[None]
    return torch.where(lengths > 0, dots / lengths.clamp(min=1e-300), 0.0).clamp(-1, 1)


def distances(points: Tensor, metric: Metric) -> Tensor:
    """Pairwise distances (n, n), from the Gram matrix: which needs n x n numbers besides the points."""
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
    # The sign of a singular direction is arbitrary: the largest entry is made positive.
    leading = leading * leading.gather(0, leading.abs().argmax(0, keepdim=True)).sign()
    lengths = dots.diagonal().sqrt()[:, None]
    return torch.where(lengths > 0, leading / lengths.clamp(min=1e-300), 0.0).round(decimals=9)


def madc(updates: Tensor) -> Tensor:
    """Mean absolute difference of cosines (n, n): how differently two updates relate to others (FedGroup, Eq. 7)."""
    similarity = cosines(updates)
    n = len(similarity)
    if n < 3:
        return torch.zeros(n, n, dtype=torch.float64)
    total = torch.cdist(similarity, similarity, p=1)
    # The sum leaves out z = i and z = j; S_ii is 1, but 0 for a client that has not moved.
    own = similarity.diagonal()
    total = total - (own[:, None] - similarity).abs() - (own[None] - similarity).abs()
    return (total.clamp(min=0) / (n - 2)).fill_diagonal_(0)


def in_row_space(points: Tensor) -> Tensor:
    """Coordinates (n, n) with the same pairwise distances: k-means needs no more of n points in many dimensions."""
    if points.shape[1] <= len(points):
        return points.double()
    dots = gram(points)
    middle = dots.mean(0)
    values, vectors = torch.linalg.eigh(dots - middle[:, None] - middle[None] + middle.mean())  # of centered points
    values = values.where(values > _noise(dots), 0)
    coordinates: Tensor = vectors * values.sqrt()
    return coordinates


def _noise(dots: Tensor) -> float:
    """Eigenvalues of a Gram matrix below this are rounding errors, and must not separate equal points."""
    return float(dots.diagonal().max()) * len(dots) * 1e-15


Angle: TypeAlias = Literal["smallest", "sum"]


SAME = 1e-6  # of the largest singular value: a direction below is a combination of the others


def subspace_angles(bases: Tensor, others: Tensor, angle: Angle, orthonormal: bool = True) -> Tensor:
    """Degrees (n, m) between subspaces (n, q, d) and others (m, q, d).

    smallest: the least principal angle, whose cosine is the largest singular value of U V^T; of vectors that are not
    orthonormal within a subspace, after they have been made so.
    sum: of the angles between corresponding vectors, regardless of their signs; what neither has counts nothing, what
    only one has is at a right angle.
    """
    if angle == "smallest":
        if not orthonormal:
            bases, others = _orthonormal(bases), _orthonormal(others)
        # One client after another: all pairs of vectors of all pairs of clients may be many.
        largest = [torch.linalg.matrix_norm(others.double() @ one.double().T, ord=2) for one in bases]
        found = torch.stack(largest) if largest else bases.new_zeros(0, len(others))
        return torch.rad2deg(found.clamp(0, 1).acos())
    cosines = torch.einsum("iqd,jqd->ijq", bases.double(), others.double()).abs().clamp(0, 1)
    either = bases.any(2)[:, None] | others.any(2)[None]
    return (torch.rad2deg(cosines.acos()) * either).sum(2)


def _orthonormal(bases: Tensor) -> Tensor:
    """The same subspaces (n, q, d) by orthonormal rows, with zeros where there are fewer directions than vectors."""
    values: Tensor
    rows: Tensor
    _, values, rows = torch.linalg.svd(bases.double(), full_matrices=False)
    return rows * (values > SAME * values[:, :1])[:, :, None]
