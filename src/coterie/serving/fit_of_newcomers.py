"""Does a newcomer fit the cluster it was put in, or none of them? Decided by its score there.

Where clients of a cluster predict with the cluster's model, their scores say what is usual: the newcomer's error is
compared with theirs by Welch's test for one more client. Its standard error is squared and added to the variance
between clients, since a newcomer with few samples may look bad by chance. A newcomer that fits is called "none of
these" with the probability `level` only.

Where clients have models of their own (Ditto, FedSoft), their scores are no measure for a newcomer that has none. Then
the cluster's model must at least beat a guess: any class, or the mean of all training targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from coterie.core.tasks import Evaluated, Own, walk
from coterie.network.registry import ClientRegistry
from coterie.training.result import Result

LEVEL = 0.01  # of the newcomers that do fit, so many are said not to
FAR = 0.1  # as much accuracy below the mean of its cluster is marked, whether or not it fits

Floats = NDArray[np.float64]


def errors_of(reply: Evaluated) -> Floats:
    """The error of each client: 1 - accuracy, or the mean squared error of a regression; NaN where it has no score."""
    accuracy, loss = reply.accuracy.double().numpy(), reply.loss.double().numpy()
    found = loss if np.isnan(accuracy).all() else 1 - accuracy
    return np.where((reply.n.numpy() > 0) & np.isfinite(found), found, np.nan)


def usual(error: float, spread: float, n: int, others: Floats, pooled: tuple[float, int] | None = None) -> float:
    """The probability that one more client like the others has an error as large as this one.

    error, spread: mean and standard deviation of the newcomer's errors on its n samples. others: the error of each
    client of the cluster. pooled: the variance between clients of one cluster over all clusters, and its degrees of
    freedom, for a cluster with one client. NaN where nothing can be said.
    """
    m = len(others)
    if m < 1 or n < 2 or (m < 2 and pooled is None):
        return math.nan
    variance, freedom = (float(others.var(ddof=1)), m - 1) if m > 1 or pooled is None else pooled
    between, within = variance * (1 + 1 / m), spread**2 / n
    apart = error - float(others.mean())
    if between + within == 0:
        return 1.0 if apart <= 0 else 0.0
    degrees = (between + within) ** 2 / (between**2 / freedom + within**2 / (n - 1))
    return float(stdtr(degrees, -apart / math.sqrt(between + within)))


def far_below(accuracy: float | None, usual_accuracy: float | None, n: int) -> bool:
    """Whether an accuracy is a tenth or more below what its cluster has, and by two standard errors of its own."""
    if accuracy is None or usual_accuracy is None or n < 2:
        return False
    error = math.sqrt(accuracy * (1 - accuracy) / (n - 1))
    return usual_accuracy - accuracy >= max(FAR, 2 * error)


@dataclass(frozen=True, eq=False)
class Yardstick:
    """What is usual in each cluster of a run."""

    errors: dict[int, Floats]  # of the clients of each cluster; empty where these have models of their own
    pooled: tuple[float, int] | None
    guess: float  # the error of a guess, where clients have models of their own
    level: float

    @staticmethod
    def of(result: Result[Any], level: float = LEVEL) -> Yardstick:
        """As the last evaluation of a run has it."""
        task = result.method.predictor(result.state)
        if any(isinstance(node, Own) for ref in task.models for node in walk(ref)):
            return Yardstick({}, None, _guess(result), level)
        reply, found = result.clients, errors_of(result.clients)
        cluster = np.zeros(len(found), dtype=np.int64) if reply.choice is None else reply.choice.numpy()
        scored = ~np.isnan(found)
        errors = {int(c): found[scored & (cluster == c)] for c in np.unique(cluster)}
        freedom = sum(max(len(e) - 1, 0) for e in errors.values())
        squares = sum(float(((e - e.mean()) ** 2).sum()) for e in errors.values() if len(e) > 1)
        return Yardstick(errors, (squares / freedom, freedom) if freedom else None, math.nan, level)

    @property
    def by_guess(self) -> bool:
        """Whether clients have models of their own, so that their scores are no measure."""
        return not self.errors

    def p_value(self, errors: Floats, cluster: int) -> float | None:
        """How usual these errors on a newcomer's samples are in a cluster; None where that is not measured."""
        if self.by_guess or not len(errors):
            return None
        spread = float(errors.std(ddof=1)) if len(errors) > 1 else 0.0
        others = self.errors.get(cluster, np.empty(0))
        found = usual(float(errors.mean()), spread, len(errors), others, self.pooled)
        return None if math.isnan(found) else found

    def mean(self, cluster: int) -> float | None:
        """The mean error of the cluster's clients, each counted once; None where that is no measure."""
        found = self.errors.get(cluster, np.empty(0))
        return float(found.mean()) if len(found) else None

    def fits(self, errors: Floats, cluster: int) -> bool | None:
        """Whether a newcomer with these errors fits; None where that cannot be said."""
        if self.by_guess:
            return None if not len(errors) or math.isnan(self.guess) else bool(errors.mean() < self.guess)
        found = self.p_value(errors, cluster)
        return None if found is None else found >= self.level


def _guess(result: Result[Any]) -> float:
    """The error of saying any class, or the mean of all training targets."""
    if result.model.loss == "cross_entropy":
        known = result.known.shape if isinstance(result.known, ClientRegistry) else result.known
        outputs: int | None = getattr(known, "outputs", None)
        return math.nan if outputs is None else 1 - 1 / outputs
    target = result.target_scale
    return math.nan if target is None else float(target.std.square().mean())
