"""Many clients as one computation, in this process. With several workers see `workers`, which can do the same."""

from __future__ import annotations

import torch

from coterie.client.answers import ClientTasks
from coterie.client.batched.visits import BatchedTaskRunner
from coterie.client.memory import Memory
from coterie.core.allocation.buffers import BufferPool
from coterie.core.model import Model
from coterie.data.federation import Federation
from coterie.engines.chunks import CHUNKS, make_chunks
from coterie.engines.contract import Missing, Outcome, ReplyBuilder, Visit, reason


class Batched:
    """Visits clients chunk by chunk."""

    arithmetic = "batched"

    def __init__(self, model: Model, federation: Federation) -> None:
        self.federation = federation
        self.memory = Memory()
        self._runner = BatchedTaskRunner(model)
        self._blocks = BufferPool()
        self._n = federation.train.lengths  # by id

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = ReplyBuilder(visit, self._blocks)
        missing: list[Missing] = []
        with torch.random.fork_rng(devices=[]):
            for chunk in make_chunks(visit.ids, self._n[visit.ids], CHUNKS):
                calls = [ClientTasks(client, visit.tasks_for(client), self.memory.read(client)) for client in chunk]
                results = self._runner.visit_all(calls, self.federation, visit.moment)
                for client, result in zip(chunk, results, strict=True):
                    if isinstance(result, Exception):
                        missing.append(Missing(client, reason(result)))
                        continue
                    if visit.keep:
                        self.memory.write(client, result.keeps)
                    answers.add(client, result.answers)
        return Outcome(answers.replies(), tuple(sorted(missing, key=lambda m: m.client)))

    def close(self) -> None:
        """Nothing to release."""
