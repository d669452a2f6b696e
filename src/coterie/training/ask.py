"""`ask`, as a method gets it: tasks become a visit. Too few answers over the round are a QuorumError, and a visit
without any answer is a NoAnswerError."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.client.contract import Moment
from coterie.clustering.aggregators import Robust
from coterie.core.aggregation import Aggregator
from coterie.core.errors import CoterieError, NoAnswerError, QuorumError
from coterie.core.references import describe_value
from coterie.core.tasks import Evaluate, Fit, Fitted, Reply, Task
from coterie.engines.contract import CountsTraffic, Engine, Missing, Outcome, RejectionListener, Visit
from coterie.engines.quarantine import guard
from coterie.engines.screening import screen, without
from coterie.training.traffic import down, up

EVALUATION = 1_000_000  # task numbers of evaluation start here, so that evaluating never changes training


class RoundAsk:
    """One round's `ask`. Remembers who was asked, who answered and who did not, over all its visits."""

    def __init__(
        self,
        engine: Engine,
        cohort: Tensor,
        seed: int,
        round: int,
        *,
        quorum: float = 0.0,
        gone: Tensor | None = None,
        keep: bool = True,
        update_bound: float = 0.0,
        scale: float = 0.0,
        names: Sequence[str] | None = None,
        aggregator: Aggregator | None = None,
        rule: Robust | None = None,
        before: Collection[int] = (),
    ) -> None:
        """update_bound, scale: see `screening.screen`; 0 accepts every update. names: of all clients, by id.

        aggregator: takes the place of the means of this round; None: they are plain. rule, before: see
        `quarantine.guard`.
        """
        self._engine, self.cohort = engine, cohort
        self._seed, self._round, self._quorum, self._keep = seed, round, quorum, keep
        self._bound, self._scale, self._names, self._aggregator = update_bound, scale, names, aggregator
        self._rule, self._before = rule, before
        self._measured: Mapping[int, Tensor] = {}  # norms of the updates of the visit that is looked at
        self._next = 0 if keep else EVALUATION
        self._gone = gone if gone is not None else torch.empty(0, dtype=torch.int64)
        self.asked: set[int] = set()
        self.missing: dict[int, Missing] = {}
        self.rejected: set[int] = set()  # of the missing: whose update was too large
        self.quarantined: set[int] = set()  # of the rejected: whose update was far from all others
        self.clipped: set[int] = set()  # whose update was scaled down
        self.update_norm: float | None = None  # the largest median of the round's visits
        self.sent = self.received = 0  # bytes
        self.seconds = 0.0  # of the visits
        self.fitted: list[tuple[Fit, Any]] = []  # the trainings of the last visit that had any, and their replies

    def __call__(self, task: Task | Sequence[Task]) -> Any:
        for one in task if isinstance(task, list | tuple) else (task,):
            if not isinstance(one, Task):
                raise CoterieError(
                    f"ask: expected Fit, Score, Evaluate or Describe, or a list of them, got {describe_value(one)}",
                    code="task-invalid",
                )
        single = isinstance(task, Task)
        tasks: tuple[Task, ...] = (task,) if isinstance(task, Task) else tuple(task)
        wanted = torch.cat([self.cohort if t.on is None else t.on for t in tasks]).unique()
        if not len(wanted) and not all(isinstance(one, Evaluate) for one in tasks):
            raise NoAnswerError(f"round {self._round + 1}: no client was drawn")
        tasks = tuple(self._narrow(t, wanted) for t in tasks)
        there = wanted[~torch.isin(wanted, self._gone)]
        visit = Visit(tasks, there, Moment(self._seed, self._round, self._next), keep=self._keep)
        outcome = self._visit(visit)
        self._next += len(tasks)
        self.asked.update(wanted.tolist())
        for client in set(wanted.tolist()) - set(there.tolist()):
            self.missing[client] = Missing(client, "dropped out (simulated)")
        self.missing.update({m.client: m for m in outcome.missing})
        outcome = self._guarded(tasks, self._screened(tasks, outcome))
        fits = [(t, r) for t, r in zip(tasks, outcome.replies, strict=True) if isinstance(t, Fit)]
        # A later training of a shared model (StoCFL's chain) does not replace that of cluster models.
        if fits and (_clustered(fits) or not _clustered(self.fitted)):
            self.fitted = fits
        self._check_quorum()
        looking = all(isinstance(task, Evaluate) for task in tasks)  # an evaluation reports missing clients itself
        if not looking and not any(len(reply.ids) for reply in outcome.replies):
            raise NoAnswerError(f"round {self._round + 1}: no client answered")
        replies = [self._carrying(t, r) for t, r in zip(tasks, outcome.replies, strict=True)]
        return replies[0] if single else replies

    def _visit(self, visit: Visit) -> Outcome:
        """Carry out a visit and count its bytes, as sent if there is a network."""
        wire = dataclasses.replace(self._engine.traffic) if isinstance(self._engine, CountsTraffic) else None
        sent = down(visit, self._engine.memory) if self._keep and wire is None else 0
        began = time.perf_counter()
        outcome = self._engine.visit(visit)
        self.seconds += time.perf_counter() - began
        if not self._keep:
            return outcome
        if isinstance(self._engine, CountsTraffic) and wire is not None:
            self.sent += self._engine.traffic.down - wire.down
            self.received += self._engine.traffic.up - wire.up
        else:
            self.sent, self.received = self.sent + sent, self.received + up(outcome.replies)
        return outcome

    def _carrying(self, task: Task, reply: Reply) -> Reply:
        """The reply, with what takes the place of a mean of its models."""
        if self._aggregator is None or not isinstance(task, Fit) or not isinstance(reply, Fitted):
            return reply
        return dataclasses.replace(reply, aggregator=self._aggregator, start=task.start)

    def _narrow(self, task: Task, wanted: Tensor) -> Task:
        """If the tasks of a visit are for different clients, each names its clients."""
        if task.on is not None or len(wanted) == len(self.cohort):
            return task
        return dataclasses.replace(task, on=self.cohort)

    def _screened(self, tasks: Sequence[Task], outcome: Outcome) -> Outcome:
        """Without the replies of clients whose update is too large: they are missing, with the reason."""
        found = screen(tasks, outcome.replies, self._bound, self._scale)
        if found.median is not None:
            self.update_norm = max(found.median, self.update_norm or 0.0)
        self._note_rejected(found.rejected)
        self._measured = {} if found.rejected else found.measured
        ids = [missing.client for missing in found.rejected]
        return Outcome(tuple(without(reply, ids) for reply in outcome.replies), (*outcome.missing, *found.rejected))

    def _guarded(self, tasks: Sequence[Task], outcome: Outcome) -> Outcome:
        """What a robust aggregator lets a method see (see `quarantine.guard`)."""
        if self._rule is None:
            return outcome
        found = guard(tasks, outcome.replies, self._rule, self._measured, {*self._before, *self.rejected})
        self.quarantined.update(found.quarantined)
        self.clipped.update(found.clipped)
        self._note_rejected(found.rejected)
        return Outcome(found.replies, (*outcome.missing, *found.rejected))

    def _note_rejected(self, rejected: Sequence[Missing]) -> None:
        self.rejected.update(missing.client for missing in rejected)
        for missing in rejected:
            self.missing[missing.client] = missing
            if isinstance(self._engine, RejectionListener) and missing.client not in self.quarantined:
                self._engine.rejected(missing.client, missing.reason)

    @property
    def lost(self) -> tuple[Missing, ...]:
        """Those who are missing, by ascending id, with their names."""
        names, found = self._names, [self.missing[client] for client in sorted(self.missing)]
        if names is None:
            return tuple(found)
        return tuple(dataclasses.replace(m, name=names[m.client]) if m.client < len(names) else m for m in found)

    def _check_quorum(self) -> None:
        """Check the quorum over the whole round: a visit to a single client does not depend on that client alone."""
        meant = max(len(self.cohort), len(self.asked))
        answered = meant - len(self.missing)
        needed = math.ceil(self._quorum * meant - 1e-9)
        if answered < needed:
            first = self.lost[0]
            raise QuorumError(
                f"round {self._round + 1}: {answered} of {meant} clients answered, the quorum is {needed}; "
                f"first missing: {first.who}: {first.reason}"
            )


def _clustered(fits: Sequence[tuple[Fit, Any]]) -> bool:
    return any(reply.choice is not None for _, reply in fits)
