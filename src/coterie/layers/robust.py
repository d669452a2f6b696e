"""Robust aggregation around any method: the rule in place of every mean, and what is done with updates before that.

A mean that resists a few hostile clients is not enough: in clustered learning an update also decides who belongs
together. So an update that is far too long is rejected, a long one is scaled down, and one that is far from all others
is quarantined for the round: fewer than `smallest` clients cannot move a center on their own, merge two clusters or
found one. The rules themselves are `clustering.robust`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, get_args

import torch
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt
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
    isolation,
    krum,
    mixed,
    mixing,
    multi_krum,
    products,
    trimmed_mean,
)
from coterie.core.references import start_known, starts_of
from coterie.core.settings import STRICT, dataclass
from coterie.core.sketch import sketch
from coterie.core.tasks import Fit, Fitted, Reply, Task
from coterie.engines.contract import Missing, Outcome, RejectionListener, Visit
from coterie.engines.updates import SMALLEST, more_steps, norms, screen, without
from coterie.layers.contract import Layer, Onward, Round, averaging, by_name

AGAIN = f"update quarantined: one of before was not accepted, and of fewer than {SMALLEST} answers none can be judged"
LENGTH = 4096  # numbers that stand for a longer model when distances of many are compared
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


@dataclass(frozen=True, config=STRICT)
class RobustSettings:
    """The option of a run."""

    # A robust rule in place of every mean: docs/robustness.md.
    aggregator: Annotated[Robust, BeforeValidator(by_name)] | None = None


class Guard(Layer):
    """What a robust aggregator lets a method see, and its rule in place of the method's means."""

    key = "aggregator"

    def __init__(self, rule: Robust) -> None:
        self._rule = rule
        self._turned_away: set[int] = set()  # clients whose update was rejected or quarantined in committed rounds
        self._mean = RobustMean(rule)

    @classmethod
    def of(cls, settings: Any) -> Guard | None:
        """None where means are plain."""
        return None if settings.aggregator is None else cls(settings.aggregator)

    def admits(self) -> bool:
        """Clients that are added are placed in their first round: there their updates are judged, and it is noted of
        whom."""
        return False

    def begin(self, round: Round) -> None:
        """See `Layer.begin`."""
        self._engine, self._mean = round.engine, RobustMean(self._rule)
        self._rejected, self._quarantined, self._clipped = set[int](), set[int](), set[int]()

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """See `Layer.visit`."""
        outcome = onward(visit)
        self._rejected.update(missing.client for missing in outcome.missing if missing.rejected)
        found = guard(visit.tasks, outcome.replies, self._rule, self._turned_away | self._rejected)
        self._quarantined.update(found.quarantined)
        self._clipped.update(found.clipped)
        for missing in found.rejected:
            self._rejected.add(missing.client)
            if isinstance(self._engine, RejectionListener) and missing.client not in self._quarantined:
                self._engine.rejected(missing.client, missing.reason)
        replies = averaging(visit.tasks, found.replies, lambda _: self._mean)
        return Outcome(replies, (*outcome.missing, *found.rejected))

    def commit(self, round: Round, before: Any, after: Any) -> Mapping[str, Any]:
        """Whose updates were scaled down or quarantined, and clusters below the floor with their number of clients."""
        self._turned_away |= self._rejected
        small = [[cluster, many] for cluster, many in sorted(self._mean.small.items())]
        return {"clipped": sorted(self._clipped), "quarantined": sorted(self._quarantined), "small": small}

    def pack(self) -> Mapping[str, Any]:
        """See `Layer.pack`."""
        return {"turned_away": torch.tensor(sorted(self._turned_away), dtype=torch.int64)}

    def unpack(self, kept: Mapping[str, Any], lost: Sequence[Any]) -> None:
        """See `Layer.unpack`."""
        self._turned_away = set(kept["turned_away"].tolist()) if "turned_away" in kept else set()

    @classmethod
    def warnings(cls, settings: Any, history: Sequence[Any], clients: Any) -> Iterator[str]:
        """Where clusters were too small for the rule that was asked for."""
        small = [found for event in history if (found := event.layers.get(cls.key, {}).get("small"))]
        if small:
            many = max(members for _, members in small[-1])
            yield (
                f"aggregator: in {len(small)} of {len(history)} rounds there were clusters below aggregator.floor (in "
                f"the last of them of up to {many} clients): their updates were clipped and averaged, which protects "
                "them less"
            )


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


# ------------------------------------------------------------------------ before a method sees them


@dataclasses.dataclass(frozen=True, eq=False)
class Guarded:
    """Replies as a method may see them, who is not among them any more and why, and whose updates were scaled down."""

    replies: tuple[Reply, ...]
    rejected: tuple[Missing, ...] = ()
    quarantined: tuple[int, ...] = ()  # of those
    clipped: tuple[int, ...] = ()


def guard(
    tasks: Sequence[Task],
    replies: Sequence[Reply],
    rule: Robust,
    before: Collection[int] = (),
) -> Guarded:
    """Reject, quarantine and scale down, in this order. Fewer than five answers cannot be judged: they are left as they
    are, but for those of clients that were rejected or quarantined before.

    before: those clients.
    """
    screened = screen(tasks, replies, rule.reject, 0.0, "aggregator.reject")
    long = screened.rejected
    left = [without(reply, [m.client for m in long]) for reply in replies]
    far: dict[int, Missing] = {}
    for task, reply in zip(tasks, left, strict=True):
        if isinstance(task, Fit) and isinstance(reply, Fitted):
            far |= {client: Missing(client, _why(rule), rejected=True) for client in isolated(reply, rule)}
            far |= {client: Missing(client, AGAIN, rejected=True) for client in _unjudged(reply, before)}
    left = [without(reply, list(far)) for reply in left]
    clipped: set[int] = set()
    for i, (task, reply) in enumerate(zip(tasks, left, strict=True)):
        if isinstance(task, Fit) and isinstance(reply, Fitted):
            lengths = screened.measured.get(i)
            if lengths is not None and reply is not replies[i]:  # somebody was left out
                lengths = lengths[torch.isin(replies[i].ids, reply.ids)]
            left[i], whose = _clipped(task, reply, rule.clip, lengths)
            clipped |= whose
    lost = {missing.client: missing for missing in long} | far
    return Guarded(
        tuple(left), tuple(lost[c] for c in sorted(lost)), tuple(sorted(far)), tuple(sorted(clipped - set(lost)))
    )


def _unjudged(reply: Fitted, before: Collection[int]) -> list[int]:
    """Of too few answers to judge, those of clients that were not accepted before: they would come in now, as a method
    asks alone whom it has not met."""
    return [client for client in reply.ids.tolist() if client in before] if len(reply.ids) < SMALLEST else []


def _why(rule: Robust) -> str:
    return f"update quarantined: fewer than {rule.smallest - 1} other clients are near it (aggregator.smallest)"


def isolated(reply: Fitted, rule: Robust) -> list[int]:
    """Clients with fewer than `smallest - 1` others near them, as near as is usual in this cohort. Of fewer than five
    answers none can be judged."""
    points = reply.theta if reply.sent is not None else reply.sketch
    if points is None or len(reply.ids) < SMALLEST or rule.smallest == 1:
        return []
    if len(points) > FEW and points.shape[1] > LENGTH:  # comparing all pairs of so many long ones would take long
        points = sketch(points - points.mean(0), LENGTH)
    far = isolation(points, rule.smallest - 1)
    usual = float(far.median())
    return reply.ids[far > rule.isolated * usual].tolist() if usual > 0 else []


def _clipped(task: Fit, reply: Fitted, clip: float, lengths: Tensor | None) -> tuple[Fitted, set[int]]:
    """The reply with long updates scaled down to `clip` medians, and whose they were. lengths: where they are known."""
    if len(reply.ids) < SMALLEST:
        return reply, set()
    whose: set[int] = set()
    steps = more_steps(task, reply.n)
    if reply.sketch is not None:
        rows, shorter = _shorter(torch.linalg.vector_norm(reply.sketch, dim=1).double(), clip, steps)
        if len(rows):
            whose |= set(reply.ids[rows].tolist())
            scaled = reply.sketch.index_copy(0, rows, reply.sketch[rows] * shorter.to(reply.sketch.dtype))
            reply = dataclasses.replace(reply, sketch=scaled)
    if reply.sent is not None and start_known(task.start):
        rows, shorter = _shorter(norms(task, reply) if lengths is None else lengths, clip, steps)
        chosen = None if reply.choice is None else reply.choice[rows]
        start = starts_of(task.start, reply.ids[rows], chosen) if len(rows) else None
        if start is not None:
            whose |= set(reply.ids[rows].tolist())
            nearer = start + (reply.models[rows] - start) * shorter.to(start.dtype)
            reply = dataclasses.replace(reply, sent=reply.models.index_copy(0, rows, nearer))
    return reply, whose


def _shorter(lengths: Tensor, clip: float, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Which updates of these lengths are too long, and what to multiply them by (r, 1)."""
    allowed = clip * lengths.median() * steps
    rows = torch.nonzero((lengths > allowed) & (allowed > 0))[:, 0]
    return rows, (allowed[rows] / lengths[rows])[:, None]
