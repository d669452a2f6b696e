"""The mathematics of privacy: clipping, noise, and what releases cost.

Epsilon for a delta, and the noise for an epsilon, are computed by Google's dp-accounting (PLD).

Two federations are neighbours if the data of one client is in one of them and not in the other: its answers are then
replaced by nothing. Every release here is one of three mechanisms. A `Gaussian` of noise multiplier z adds noise of
z times the most that one client can change. `PoissonGaussian` is the same where every client takes part by a coin of
its own, unseen, with chance q. `RandomisedResponse` is a choice of k that is replaced by one drawn uniformly with
chance p. Each is counted as often as it happened.

Privacy loss distributions are rounded up, so epsilon is an upper bound, too large by less than 1e-3.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.seeds import Purpose, generator
from coterie.core.sketch import lift, sketch

GRID = 5e-4  # of privacy losses, unless they are large ...
POINTS = 200_000  # ... and this many points would not reach: then epsilon is large, and a coarser grid will do
HOPELESS = 0.05  # noise below which epsilon is in the hundreds: it is called infinite
CLOSE = 1e-4  # of the noise multiplier that is found, relative
CHUNK = 1 << 21  # numbers that are clipped, or drawn, at a time
ULP = 2.0**-53  # uniform numbers are multiples of it


@dataclass(frozen=True)
class Gaussian:
    """Noise of `noise` times the sensitivity, so many times."""

    noise: float
    times: int = 1


@dataclass(frozen=True)
class PoissonGaussian:
    """The same on a cohort that every client joins with chance `share`, independently of the others."""

    share: float
    noise: float
    times: int = 1


@dataclass(frozen=True)
class RandomisedResponse:
    """One of `options`; with chance `random` it is drawn uniformly instead."""

    options: int
    random: float
    times: int = 1


Release: TypeAlias = Gaussian | PoissonGaussian | RandomisedResponse


def require_accounting() -> None:
    """Say how to install it."""
    if find_spec("dp_accounting") is None:
        raise CoterieError("privacy: needs dp-accounting: pip install 'coterie[privacy]'", code="extra-missing")


@lru_cache(maxsize=4096)
def epsilon_of(releases: tuple[Release, ...], delta: float) -> float:
    """The epsilon of all these releases together, at this delta; infinite where one of them has no noise."""
    require_accounting()
    whole: Any = None
    counted = [one for one in _merged(releases) if one.times]
    if any(map(_without_noise, counted)):
        return math.inf
    grid = max((_grid(one) for one in counted), default=GRID)
    for release in counted:
        loss = _composed(release, grid)
        whole = loss if whole is None else whole.compose(loss)
    if whole is None:
        return 0.0
    try:
        return max(0.0, float(whole.get_epsilon_for_delta(delta)))
    except OverflowError:  # e^epsilon is more than a float holds
        return math.inf


def _merged(releases: Sequence[Release]) -> list[Release]:
    """Gaussians as one: their precisions (1 / noise^2) add up."""
    plain = [one for one in releases if isinstance(one, Gaussian) and one.times]
    others: list[Release] = [one for one in releases if not isinstance(one, Gaussian)]
    if not plain:
        return others
    if any(_without_noise(one) for one in plain):
        return [Gaussian(0.0), *others]
    return [Gaussian(sum(one.times / one.noise**2 for one in plain) ** -0.5), *others]


def _without_noise(release: Release) -> bool:
    if isinstance(release, RandomisedResponse):
        return release.random == 0 and release.options > 1
    return release.noise < HOPELESS and not (isinstance(release, PoissonGaussian) and release.share == 0)


def _grid(release: Release) -> float:
    """How fine privacy losses are told apart: they are about as large as those of the Gaussian alone."""
    if isinstance(release, RandomisedResponse):
        return GRID
    return max(GRID, (0.5 / release.noise**2 + 10 / release.noise) / POINTS)


@lru_cache(maxsize=64)
def _one(release: Release, grid: float) -> Any:
    """The privacy loss distribution of a mechanism used once."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as losses

    same = dp_accounting.NeighboringRelation.REPLACE_ONE
    match release:
        case Gaussian(noise):
            return losses.from_gaussian_mechanism(noise, value_discretization_interval=grid)
        case PoissonGaussian(share, noise):
            return losses.from_gaussian_mechanism(noise, sampling_prob=share, value_discretization_interval=grid)
        case RandomisedResponse(options, random):
            return losses.from_randomized_response(
                random, options, value_discretization_interval=grid, neighboring_relation=same
            )


def _composed(release: Release, grid: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as losses

    if (isinstance(release, PoissonGaussian) and not release.share) or (
        isinstance(release, RandomisedResponse) and (release.options == 1 or release.random == 1)
    ):
        return losses.identity(value_discretization_interval=grid)
    once = _one(type(release)(**{k: v for k, v in vars(release).items() if k != "times"}), grid)
    return once if release.times == 1 else once.self_compose(release.times)


def noise_for(epsilon: float, delta: float, releases: Callable[[float], tuple[Release, ...]]) -> float:
    """The least noise multiplier (to `CLOSE`) at which the releases that it makes cost at most epsilon."""
    require_accounting()

    def cost(noise: float) -> float:
        return epsilon_of(releases(noise), delta)

    high = 1.0
    while cost(high) > epsilon:
        high *= 2
        if high > 1e6:
            raise CoterieError(
                f"privacy.epsilon: no noise is enough for {epsilon:g} at delta {delta:g}", code="privacy-impossible"
            )
    low = high / 2
    while cost(low) <= epsilon and low > 1e-3:
        low, high = low / 2, low
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    return high


def precision_for(epsilon: float, delta: float) -> float:
    """The sum of 1 / noise^2 that Gaussian releases may have together."""
    return noise_for(epsilon, delta, lambda noise: (Gaussian(noise),)) ** -2


# ------------------------------------------------------------------------------------- clipping and noise


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
