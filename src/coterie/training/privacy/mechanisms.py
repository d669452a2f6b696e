"""Clipping and noise: the two steps that every release goes through, as functions on arrays."""

from __future__ import annotations

import math
import secrets

import numpy as np
import torch
from torch import Tensor

from coterie.core.seeds import Purpose, generator
from coterie.core.sketch import lift, sketch

CHUNK = 1 << 21  # numbers that are clipped, or drawn, at a time
ULP = 2.0**-53  # uniform numbers are multiples of it


def clipped(vectors: Tensor, bound: float) -> Tensor:
    """Vectors (n, d) in double precision, scaled down to this norm where they are longer; none that is not finite."""
    exact = torch.where(vectors.isfinite().all(1, keepdim=True), vectors.double(), 0.0)
    scale: Tensor = bound / torch.linalg.vector_norm(exact, dim=1, keepdim=True).clamp(min=bound)
    return exact * scale


class SystemRandomness:
    """Draws from the operating system's generator for secrets, with the methods of NumPy's that are needed here.

    NumPy's own generators are not made for this: who sees enough of their numbers can work out the others, and where an
    update is known to be zero (the weights of a pixel that is always black) noise is seen as it is.
    """

    def random(self) -> float:
        """From 0 to 1, without 1."""
        return secrets.randbits(53) * ULP

    def integers(self, below: int) -> int:
        """From 0 to below - 1."""
        return secrets.randbelow(below)

    def standard_normal(self, shape: int | tuple[int, ...]) -> np.ndarray:
        """By Box and Muller's transform of two uniform numbers, of which the first is never 0."""
        many = math.prod(shape) if isinstance(shape, tuple) else shape
        out = np.empty(many)
        for first in range(0, many, CHUNK):
            some = out[first : first + CHUNK]
            half = (len(some) + 1) // 2
            bits = np.frombuffer(secrets.token_bytes(16 * half), dtype=np.uint64).reshape(2, half) >> 11
            far, turn = np.sqrt(-2 * np.log((bits[0] + 1) * ULP)), 2 * math.pi * ULP * bits[1]
            some[:half], some[half:] = far * np.cos(turn), (far * np.sin(turn))[: len(some) - half]
        return out.reshape(shape)


def noise(shape: tuple[int, ...], deviation: float, key: int | None, *words: int) -> Tensor:
    """Gaussian noise (double precision), the same for the same key and words; without a key, nobody can foresee it."""
    if deviation == 0:
        return torch.zeros(shape, dtype=torch.float64)
    source = SystemRandomness() if key is None else generator(key, Purpose.PRIVACY, *words)
    return torch.from_numpy(source.standard_normal(shape)) * deviation


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


def noisy_sketches(updates: Tensor, size: int, bound: float, deviation: float, key: int | None, *words: int) -> Tensor:
    """Sketches (n, size) of updates, clipped to a norm, with noise."""
    small = clipped(sketch(updates, size), bound)
    return small + noise(tuple(small.shape), deviation, key, *words)


def lifted(sketches: Tensor, length: int) -> Tensor:
    """Vectors (n, length) whose distances are those of the sketches: what stands for models that are looked at."""
    return lift(sketches, length)
