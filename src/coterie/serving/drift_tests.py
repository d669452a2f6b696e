"""The tests behind `coterie watch`: pure functions of losses. A p-value is uniform, or larger, if nothing changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, stdtr

Floats = NDArray[np.float64]


def rose(now: Floats, before: float, samples: int) -> float:
    """How likely so high a mean of these losses is if the mean of `samples` others was `before` by the same chance.

    A t-test of two samples with the variance of the new one, since of the other the mean alone is recorded.
    """
    n = len(now)
    if n < 2 or not samples or not math.isfinite(before):
        return 1.0
    error = float(now.std(ddof=1)) * math.sqrt(1 / n + 1 / samples)
    return _above(float(now.mean()) - before, error, n - 1)


def higher(differences: Floats, reference: Floats | None = None) -> float:
    """How likely so high a mean of paired differences is if it is 0 or less: a t-test of one sample.

    If it was above 0 in the reference already, it must be higher than there: a t-test of two samples (Welch).
    """
    n = len(differences)
    if n < 2:
        return 1.0
    mean, variance = float(differences.mean()), float(differences.var(ddof=1)) / n
    alone = _above(mean, math.sqrt(variance), n - 1)
    if reference is None or len(reference) < 2 or float(reference.mean()) <= 0:
        return alone
    m, other = len(reference), float(reference.var(ddof=1)) / len(reference)
    both = variance + other
    freedom = both**2 / (variance**2 / (n - 1) + other**2 / (m - 1)) if both else 1.0
    return max(alone, _above(mean - float(reference.mean()), math.sqrt(both), freedom))


def _above(mean: float, error: float, freedom: float) -> float:
    if error == 0:
        return 1.0 if mean <= 0 else 0.0
    return float(stdtr(freedom, -mean / error))


def too_many(count: int, of: int, chance: float) -> float:
    """How likely at least so many of `of` are if each is with this chance."""
    return 1.0 if count == 0 else float(bdtrc(count - 1, of, chance))


def either(*ps: float) -> float:
    """The p-value of several tests of one thing (Bonferroni)."""
    return min(1.0, len(ps) * min(ps))


def holm(ps: Sequence[float], alpha: float) -> list[bool]:
    """Which of these are significant if, where nothing changed, one of all may be so with probability alpha."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    found = [False] * len(ps)
    for rank, i in enumerate(order):
        if ps[i] > alpha / (len(ps) - rank):
            break
        found[i] = True
    return found
