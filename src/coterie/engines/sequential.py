"""The reference engine: one client after another, in this process."""

from __future__ import annotations

import torch

from coterie.blocks import Blocks
from coterie.client import HasClients, Workbench
from coterie.engines.contract import Gathering, Missing, Outcome, Visit, reason
from coterie.memory import Memory
from coterie.model import Model


class Sequential:
    """Visits clients one by one."""

    def __init__(self, model: Model, federation: HasClients) -> None:
        self.federation = federation
        self.memory = Memory()
        self._bench = Workbench(model)
        self._blocks = Blocks()

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = Gathering(visit, self._blocks)
        missing: list[Missing] = []
        with torch.random.fork_rng(devices=[]):
            for client in visit.ids.tolist():
                try:
                    data, keeps = self.federation.client(client), self.memory.read(client)
                    done = self._bench.visit(visit.asked_of(client), client, data, keeps, visit.moment)
                except Exception as error:
                    missing.append(Missing(client, reason(error)))
                    continue
                if visit.keep:
                    self.memory.write(client, done.keeps)
                answers.add(client, done.answers)
        return Outcome(answers.replies(), tuple(missing))

    def close(self) -> None:
        """Nothing to let go of."""
