"""`ask`, as a method gets it: tasks become a visit, and a visit that too few answer becomes a QuorumError."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.client import Moment
from coterie.engines.contract import Engine, Missing, Visit
from coterie.errors import QuorumError
from coterie.tasks import Evaluate, Fit, Score, Task
from coterie.traffic import down, up

LOOKING = 1_000_000  # task numbers from here on belong to evaluation, so that looking never shifts a training plan


class Asker:
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
    ) -> None:
        self._engine, self._cohort = engine, cohort
        self._seed, self._round, self._quorum, self._keep = seed, round, quorum, keep
        self._next = 0 if keep else LOOKING
        self._gone = gone if gone is not None else torch.empty(0, dtype=torch.int64)
        self.asked: set[int] = set()
        self.missing: dict[int, Missing] = {}
        self.sent = self.received = 0  # bytes
        self.seconds = 0.0  # of the visits
        self.fitted: list[tuple[Fit, Any]] = []  # the trainings of the last visit that had any, and their replies

    def __call__(self, task: Task | Sequence[Task]) -> Any:
        single = isinstance(task, Fit | Score | Evaluate)
        tasks: tuple[Task, ...] = (task,) if isinstance(task, Fit | Score | Evaluate) else tuple(task)
        wanted = torch.cat([self._cohort if t.on is None else t.on for t in tasks]).unique()
        tasks = tuple(self._narrow(t, wanted) for t in tasks)
        there = wanted[~torch.isin(wanted, self._gone)]
        visit = Visit(tasks, there, Moment(self._seed, self._round, self._next), keep=self._keep)
        sent = down(visit, self._engine.memory) if self._keep else 0
        began = time.perf_counter()
        outcome = self._engine.visit(visit)
        self.seconds += time.perf_counter() - began
        if self._keep:
            self.sent, self.received = self.sent + sent, self.received + up(outcome.replies)
        self._next += len(tasks)
        self.asked.update(wanted.tolist())
        for client in set(wanted.tolist()) - set(there.tolist()):
            self.missing[client] = Missing(client, "dropped out (simulated)")
        self.missing.update({m.client: m for m in outcome.missing})
        fits = [(t, r) for t, r in zip(tasks, outcome.replies, strict=True) if isinstance(t, Fit)]
        # The training of cluster models is not displaced by that of a shared one in a later visit (StoCFL's chain).
        if fits and (_clustered(fits) or not _clustered(self.fitted)):
            self.fitted = fits
        self._check_quorum()
        return outcome.replies[0] if single else list(outcome.replies)

    def _narrow(self, task: Task, wanted: Tensor) -> Task:
        """Where tasks of one visit go to different clients, each says for whom it is."""
        if task.on is not None or len(wanted) == len(self._cohort):
            return task
        return dataclasses.replace(task, on=self._cohort)

    def _check_quorum(self) -> None:
        """Judged over the round: a visit to one client alone does not stand or fall with that client."""
        meant = max(len(self._cohort), len(self.asked))
        answered = meant - len(self.missing)
        needed = math.ceil(self._quorum * meant - 1e-9)
        if answered < needed:
            first = self.missing[min(self.missing)]
            raise QuorumError(
                f"round {self._round + 1}: {answered} of {meant} clients answered, the quorum is {needed}; "
                f"first missing: client {first.client}: {first.reason}"
            )


def _clustered(fits: Sequence[tuple[Fit, Any]]) -> bool:
    return any(reply.choice is not None for _, reply in fits)
