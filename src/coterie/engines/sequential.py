"""The reference engine: one client after another, in this process."""

from __future__ import annotations

import torch

from coterie.client.data import ClientDataSource
from coterie.client.memory import Memory
from coterie.client.runner import TaskRunner
from coterie.core.model import Model
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Visit, reason


class Sequential:
    """Visits clients one by one."""

    def __init__(self, model: Model, federation: ClientDataSource, runner: TaskRunner | None = None) -> None:
        """runner: networks that are there already, of this model."""
        self.federation = federation
        self.memory = Memory()
        self._runner = TaskRunner(model) if runner is None else runner

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = ReplyBuilder(visit)
        missing: list[Missing] = []
        with torch.random.fork_rng(devices=[]):
            for client in visit.ids.tolist():
                try:
                    data, keeps = self.federation.client(client), self.memory.read(client)
                    result = self._runner.visit(visit.tasks_for(client), client, data, keeps, visit.moment)
                except Exception as error:
                    missing.append(Missing(client, reason(error)))
                    continue
                if visit.keep:
                    self.memory.write(client, result.keeps)
                answers.add(client, result.answers)
        return Outcome(answers.replies(), tuple(missing))

    def close(self) -> None:
        """Nothing to release."""
