"""Robust aggregation around any method: which rule takes the place of a mean, and when it cannot be trusted."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias, get_args

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.clustering.robust import (
    FEW,
    apart_of,
    centered_clipping,
    centered_shares,
    clipped_mean,
    clipped_shares,
    coordinate_median,
    distances_of,
    geometric_median,
    geometric_shares,
    hostile_count,
    krum,
    mixed,
    mixing,
    multi_krum,
    products,
    trimmed_mean,
)
from coterie.core.settings import STRICT, dataclass
from coterie.core.tasks import Fitted

RuleName: TypeAlias = Literal[
    "trimmed-mean", "median", "geometric-median", "krum", "multi-krum", "centered-clipping", "norm-clip"
]
RULES: tuple[str, ...] = get_args(RuleName)
ANYWHERE = ("trimmed-mean", "median", "krum", "multi-krum")  # the same wherever models are measured from
CLIPPING = ("centered-clipping", "norm-clip")
SUMS = ("geometric-median", *CLIPPING)  # sums of rows whose shares follow from the rows' inner products
HEAVIEST = 4.0  # times the median weight of a cluster: over a network a client says itself how many samples it has


@dataclass(frozen=True, config=STRICT)
class Robust:
    """A robust rule for every mean that a method takes, and what is done with updates before a method sees them."""

    name: RuleName
    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.25  # of a cluster's clients that may be hostile
    floor: PositiveInt = 5  # clients; in a smaller cluster updates are clipped and averaged instead
    clip: PositiveFloat = 2.0  # times the median norm of the cohort's updates: a longer one is scaled down to it
    reject: NonNegativeFloat = 4.0  # times that median: a longer one is rejected; 0: none is
    smallest: PositiveInt = 3  # clients that can found a cluster: with fewer near it, an update is quarantined; 1: none
    isolated: PositiveFloat = 3.0  # times the median distance to that many clients: from there on it is not near
    steps: PositiveInt = 8  # of geometric-median and centered-clipping
    mix: bool = False  # first put the mean of its nearest neighbours in each update's place
    opposed: bool = True  # whether updates count that point against what the rule makes of all

    def combine(self, rows: Tensor, weights: Tensor, radius: float) -> Tensor:
        """What the rule makes of a cluster's updates (n, P). radius: the norm to which clipping clips."""
        if self.name in SUMS and (self.mix or not self.opposed) and len(rows) <= FEW:
            return self._shares(products(rows), weights, radius).to(rows.dtype) @ rows
        f = hostile_count(self.share, len(rows))
        if not self.opposed:
            along = rows @ self._ruled(rows, weights, radius, f) > 0
            if 2 * int(along.sum()) > len(rows):  # a majority says what the direction is
                f = max(0, f - int((~along).sum()))  # so many of the hostile ones are found
                rows, weights = rows[along], weights[along]
        return self._ruled(mixed(rows, f, weights) if self.mix else rows, weights, radius, f)

    def _shares(self, dots: Tensor, weights: Tensor, radius: float) -> Tensor:
        """Of each row in what `combine` makes of them, from inner products: rows are long, and are looked at twice."""
        n = len(dots)
        f, kept = hostile_count(self.share, n), torch.arange(n)
        if not self.opposed:
            along = dots @ self._share(dots, weights, radius) > 0
            if 2 * int(along.sum()) > n:
                f, kept = max(0, f - int((~along).sum())), torch.nonzero(along)[:, 0]
        dots, weights = dots[kept][:, kept], weights[kept]
        if self.mix and f:
            mix = mixing(distances_of(dots), f, weights)
            found = self._share(mix @ dots @ mix.T, weights, radius) @ mix
        else:
            found = self._share(dots, weights, radius)
        return torch.zeros(n, dtype=torch.float64).index_copy(0, kept, found)

    def _share(self, dots: Tensor, weights: Tensor, radius: float) -> Tensor:
        """Of each row in what the rule alone makes of them."""
        if self.name == "norm-clip":
            return clipped_shares(dots.diagonal().sqrt(), weights, radius)
        if self.name == "geometric-median":
            return geometric_shares(lambda share: apart_of(dots, share), weights, self.steps)
        return centered_shares(lambda share: apart_of(dots, share), weights, radius, self.steps)

    @property
    def anywhere(self) -> bool:
        """Whether the rule makes the same of models as of updates, wherever these are measured from."""
        return self.name in ANYWHERE and self.opposed

    def _ruled(self, rows: Tensor, weights: Tensor, radius: float, f: int) -> Tensor:
        """The rule alone, with f hostile ones."""
        match self.name:
            case "trimmed-mean":
                return trimmed_mean(rows, f, weights)
            case "median":
                return coordinate_median(rows)
            case "geometric-median":
                return geometric_median(rows, weights, self.steps)
            case "krum":
                return krum(rows, f)
            case "multi-krum":
                return multi_krum(rows, f, weights)
            case "centered-clipping":
                return centered_clipping(rows, weights, radius, self.steps)
            case "norm-clip":
                return clipped_mean(rows, weights, radius)


class RobustMean:
    """The rule at work in one round (see `core.aggregation.Aggregator`)."""

    def __init__(self, rule: Robust) -> None:
        self._rule = rule
        self.small: dict[int, int] = {}  # clusters below the floor, and how many clients they had

    def __call__(self, labels: Tensor, reply: Fitted, weights: Tensor, empty: Tensor) -> Tensor:
        """Each cluster's model, by the rule; below the floor, what it has now and the mean of clipped moves from it."""
        counts, models, rule = weights > 0, reply.models, self._rule
        radius = -1.0  # not computed yet
        out = empty.clone()
        for cluster in labels[counts].unique().tolist():
            members = torch.nonzero((labels == cluster) & counts)[:, 0]
            rows = models if len(members) == len(models) else models[members]
            heavy, small = _capped(weights[members]), len(members) < rule.floor and rule.name != "norm-clip"
            if not small and rule.anywhere:
                out[cluster] = rule.combine(rows, heavy, math.inf)
                continue
            if radius < 0 and (small or rule.name in CLIPPING):
                radius = self._radius(labels, models, counts, empty)
            moved = rows - empty[cluster]
            if small:
                self.small[cluster] = len(members)
            out[cluster] += clipped_mean(moved, heavy, radius) if small else rule.combine(moved, heavy, radius)
        return out

    def _radius(self, labels: Tensor, models: Tensor, counts: Tensor, empty: Tensor) -> float:
        """`clip` times the median distance of all models from what their clusters have now."""
        moved = models - (empty[0] if len(empty) == 1 else empty[labels])
        usual = float(torch.linalg.vector_norm(moved, dim=1).double()[counts].median())
        return self._rule.clip * usual if usual > 0 else math.inf  # if most did not move, nothing is called long


def _capped(weights: Tensor) -> Tensor:
    return weights.double().clamp(max=HEAVIEST * float(weights.double().median()))
