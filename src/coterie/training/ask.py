"""`ask`, as a method gets it: tasks become a visit. A visit without any answer is a NoAnswerError."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.client.contract import Moment
from coterie.core.errors import AnswersMissingError, CoterieError, NoAnswerError
from coterie.core.references import describe_value
from coterie.core.tasks import Evaluate, Fit, Task
from coterie.engines.contract import Engine, Kind, Missing, Visit, named
from coterie.layers.contract import Stack

EVALUATION = 1_000_000  # task numbers of evaluation start here, so that evaluating never changes training


class RoundAsk:
    """One round's `ask`. Remembers who was asked and who did not answer, over all its visits."""

    def __init__(
        self,
        engine: Engine | Stack,
        cohort: Tensor,
        seed: int,
        round: int,
        *,
        kind: Kind = "train",
        names: Sequence[str] | None = None,
    ) -> None:
        """kind: of its visits; of those that admit clients, a visit that only evaluates is of the kind "evaluate".
        names: of all clients, by id."""
        self._stack = engine if isinstance(engine, Stack) else Stack(engine)
        self.cohort, self._seed, self._round, self._kind, self._names = cohort, seed, round, kind, names
        self._next = 0 if kind == "train" else EVALUATION
        self.asked: set[int] = set()
        self.missing: dict[int, Missing] = {}
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
        tasks = tuple(self._narrow(t, wanted) for t in tasks)
        looking = all(isinstance(one, Evaluate) for one in tasks)  # an evaluation reports missing clients itself
        kind: Kind = "evaluate" if looking and self._kind == "admit" else self._kind
        visit = Visit(tasks, wanted, Moment(self._seed, self._round, self._next), kind)
        self.asked.update(wanted.tolist())
        try:
            outcome = self._stack.visit(visit)
        except AnswersMissingError as error:
            self._note(error.missing)
            raise
        self._note(outcome.missing)
        if len(wanted) or looking:
            self._next += len(tasks)
        if not outcome.sealed:
            fits = [(t, r) for t, r in zip(tasks, outcome.replies, strict=True) if isinstance(t, Fit)]
            # A later training of a shared model (StoCFL's chain) does not replace that of cluster models.
            if fits and (_clustered(fits) or not _clustered(self.fitted)):
                self.fitted = fits
            if not looking and not any(len(reply.ids) for reply in outcome.replies):
                what = "no client answered" if len(wanted) else "no client was drawn"
                raise NoAnswerError(f"round {self._round + 1}: {what}")
        return outcome.replies[0] if single else list(outcome.replies)

    def _note(self, missing: Iterable[Missing]) -> None:
        for one in missing:
            before = self.missing.get(one.client)
            self.missing[one.client] = before if before is not None and before.rejected else one

    def _narrow(self, task: Task, wanted: Tensor) -> Task:
        """If the tasks of a visit are for different clients, each names its clients."""
        if task.on is not None or len(wanted) == len(self.cohort):
            return task
        return dataclasses.replace(task, on=self.cohort)

    @property
    def lost(self) -> tuple[Missing, ...]:
        """Those who are missing, by ascending id, with their names."""
        return tuple(named(self.missing[client], self._names) for client in sorted(self.missing))


def _clustered(fits: Sequence[tuple[Fit, Any]]) -> bool:
    return any(reply.choice is not None for _, reply in fits)
