"""Which updates the server accepts: one far larger than the cohort's median is rejected, and its client is named.

An update is rejected when its norm exceeds `update_bound` times the median norm (see `engines.updates`). In a run with
privacy there is none of this: updates are clipped instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge

from coterie.core import settings as constructors
from coterie.core.settings import STRICT
from coterie.core.tasks import Fit, Fitted, Reply, Task
from coterie.engines.contract import Outcome, RejectionListener, Visit
from coterie.engines.updates import SMALLEST, norms, screen, without
from coterie.layers.contract import Layer, Onward, Round

STANDS_OUT = 1e3  # times the next largest update: no client gets so far ahead by its data alone


@constructors.dataclass(frozen=True, config=STRICT)
class ScreeningSettings:
    """The option of a run."""

    update_bound: Annotated[float, Ge(0)] = 10.0  # an update's norm, in medians of the cohort; beyond: rejected. 0: off


@dataclass(frozen=True)
class Outlier:
    """A client whose update was far larger than that of anybody else, in a round that was not screened."""

    client: int
    times: float  # the largest of the others


class Screening(Layer):
    """The replies of clients whose update is too large do not arrive: they are missing, with the reason."""

    key = "screening"
    free: ClassVar = ("update_bound",)

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._largest = 0.0  # of the medians of committed rounds
        self._median: float | None = None  # the largest of this attempt's visits
        self._rejected: set[int] = set()
        self._stood_out: Outlier | None = None  # in this attempt ...
        self._suspect: Outlier | None = None  # ... and in the last committed round in which anybody did

    @classmethod
    def of(cls, settings: Any) -> Screening:
        """There always is one: without a bound it still notes who stands out."""
        return cls(settings.update_bound)

    def begin(self, round: Round) -> None:
        """See `Layer.begin`."""
        self._engine, self._median, self._rejected, self._stood_out = round.engine, None, set(), None

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """See `Layer.visit`."""
        outcome = onward(visit)
        found = screen(visit.tasks, outcome.replies, self._bound, self._largest)
        if found.median is not None:
            self._median = max(found.median, self._median or 0.0)
        for missing in found.rejected:
            self._rejected.add(missing.client)
            if isinstance(self._engine, RejectionListener):
                self._engine.rejected(missing.client, missing.reason)
        gone = [missing.client for missing in found.rejected]
        replies = tuple(without(reply, gone) for reply in outcome.replies)
        self._stood_out = _larger(self._stood_out, outlier(visit.tasks, replies, self._bound))
        return Outcome(replies, (*outcome.missing, *found.rejected))

    def commit(self, round: Round, before: Any, after: Any) -> Mapping[str, Any]:
        """The median norm of the round (None where fewer than five answered), and whose updates were rejected."""
        self._largest = max(self._largest, self._median or 0.0)
        self._suspect = self._stood_out or self._suspect
        return {"median": self._median, "rejected": sorted(self._rejected)} if self._bound else {}

    def suspect(self) -> Outlier | None:
        """See `Layer.suspect`."""
        return self._suspect

    def pack(self) -> Mapping[str, Any]:
        """See `Layer.pack`."""
        return {"largest": self._largest}

    def unpack(self, kept: Mapping[str, Any], lost: Sequence[Any]) -> None:
        """See `Layer.unpack`."""
        self._largest = float(kept.get("largest", 0.0))


def outlier(tasks: Sequence[Task], replies: Sequence[Reply], bound: float) -> Outlier | None:
    """Who stands out among replies that `screen` does not compare: they are too few for a median, or bound is 0."""
    largest: Outlier | None = None
    for task, reply in zip(tasks, replies, strict=True):
        if not isinstance(task, Fit) or not isinstance(reply, Fitted) or reply.sent is None:
            continue
        if len(reply.ids) < 2 or (bound and len(reply.ids) >= SMALLEST):
            continue
        lengths = norms(task, reply)
        lengths = torch.where(lengths.isfinite(), lengths, torch.inf)
        (first, second), (row, _) = lengths.topk(2)
        if float(second) > 0 and float(first) > STANDS_OUT * float(second):
            largest = _larger(largest, Outlier(int(reply.ids[row]), float(first / second)))
    return largest


def _larger(one: Outlier | None, other: Outlier | None) -> Outlier | None:
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda found: found.times)
