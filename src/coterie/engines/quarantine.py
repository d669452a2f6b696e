"""What is done with a cohort's updates before a method sees them, where a run has a robust aggregator.

A mean that resists a few hostile clients is not enough: in clustered learning an update also decides who belongs
together. So an update that is far too long is rejected, a long one is scaled down, and one that is far from all others
is quarantined for the round: fewer than `smallest` clients cannot move a center on their own, merge two clusters or
found one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.clustering.aggregators import Robust
from coterie.clustering.robust import FEW, isolation
from coterie.core.references import start_known, starts_of
from coterie.core.sketch import sketch
from coterie.core.tasks import Fit, Fitted, Reply, Task
from coterie.engines.contract import Missing
from coterie.engines.screening import SMALLEST, more_steps, norms, screen, without

AGAIN = f"update quarantined: one of before was not accepted, and of fewer than {SMALLEST} answers none can be judged"
LENGTH = 4096  # numbers that stand for a longer model when distances of many are compared


@dataclass(frozen=True, eq=False)
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
    measured: Mapping[int, Tensor] | None = None,
    before: Collection[int] = (),
) -> Guarded:
    """Reject, quarantine and scale down, in this order. Fewer than five answers cannot be judged: they are left as they
    are, but for those of clients that were rejected or quarantined before.

    measured: norms of these replies that are known already (see `screening.screen`). before: those clients.
    """
    screened = screen(tasks, replies, rule.reject, 0.0, "aggregator.reject", measured)
    long = screened.rejected
    left = [without(reply, [m.client for m in long]) for reply in replies]
    far: dict[int, Missing] = {}
    for task, reply in zip(tasks, left, strict=True):
        if isinstance(task, Fit) and isinstance(reply, Fitted):
            far |= {client: Missing(client, _why(rule)) for client in isolated(reply, rule)}
            far |= {client: Missing(client, AGAIN) for client in _unjudged(reply, before)}
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
