"""Clipping and noise: the two steps that every release goes through, as functions on arrays."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.seeds import Purpose, generator
from coterie.core.sketch import lift, sketch

CHUNK = 1 << 21  # numbers that are clipped at a time


def clipped(vectors: Tensor, bound: float) -> Tensor:
    """Vectors (n, d) in double precision, scaled down to this norm where they are longer; none that is not finite."""
    exact = torch.where(vectors.isfinite().all(1, keepdim=True), vectors.double(), 0.0)
    scale: Tensor = bound / torch.linalg.vector_norm(exact, dim=1, keepdim=True).clamp(min=bound)
    return exact * scale


def noise(shape: tuple[int, ...], deviation: float, key: int, *words: int) -> Tensor:
    """Gaussian noise (double precision), the same for the same key and words."""
    if deviation == 0:
        return torch.zeros(shape, dtype=torch.float64)
    drawn = generator(key, Purpose.PRIVACY, *words).standard_normal(shape)
    return torch.from_numpy(drawn) * deviation


def clipped_sums(
    models: Tensor, starts: Tensor, labels: Tensor, weights: Tensor, clusters: int, bound: float
) -> tuple[Tensor, Tensor]:
    """The sum of each cluster's clipped updates (K, P), and the sum of their weights (K,).

    One client changes the sums by a vector of norm `bound` at most, and the weights by 1: it is in one cluster, and
    weights are cut to [0, 1].
    """
    sums = torch.zeros(clusters, models.shape[1], dtype=torch.float64)
    bounded = torch.nan_to_num(weights.double()).clamp(0, 1)
    many = max(1, CHUNK // max(models.shape[1], 1))
    for first in range(0, len(models), many):
        some = slice(first, first + many)
        start = starts if len(starts) == 1 else starts[some]
        updates = clipped(models[some].double() - start.double(), bound) * bounded[some, None]
        sums.index_add_(0, labels[some], updates)
    return sums, torch.zeros(clusters, dtype=torch.float64).index_add_(0, labels, bounded)


def noisy_sketches(updates: Tensor, size: int, bound: float, deviation: float, key: int, *words: int) -> Tensor:
    """Sketches (n, size) of updates, clipped to a norm, with noise."""
    small = clipped(sketch(updates, size), bound)
    return small + noise(tuple(small.shape), deviation, key, *words)


def lifted(sketches: Tensor, length: int) -> Tensor:
    """Vectors (n, length) whose distances are those of the sketches: what stands for models that are looked at."""
    return lift(sketches, length)
