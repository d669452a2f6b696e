"""Many clients as one computation, in this process. With several workers see `workers`, which can do the same."""

from __future__ import annotations

import math

from torch import Tensor

from coterie.client.batched.visits import BatchedTaskRunner
from coterie.client.contract import ClientTasks, Memory
from coterie.core.allocation import BufferPool
from coterie.core.compute import HOST, Compute
from coterie.core.model import Model
from coterie.core.seeds import own_random_numbers
from coterie.data.federation import Federation
from coterie.engines.contract import CHUNKS, Missing, Outcome, ReplyBuilder, Visit, make_chunks, reason

CHUNK_ON_DEVICE = 1 << 30  # bytes of samples and models that an accelerator has at a time
COPIES = 4  # of a client's model: what it starts from, itself, its gradient, the optimiser's state


class Batched:
    """Visits clients chunk by chunk."""

    arithmetic = "batched"

    def __init__(self, model: Model, federation: Federation, compute: Compute = HOST) -> None:
        self.federation = federation
        self.memory = Memory()
        self.device = compute.device
        self._runner = BatchedTaskRunner(model, compute=compute)
        self._size = model.size
        self._blocks = BufferPool()
        self._n = federation.train.lengths  # by id

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = ReplyBuilder(visit, self._blocks)
        missing: list[Missing] = []
        source = self.federation.at(visit.moment.round)
        with own_random_numbers(self._runner.placement.device):
            for chunk in make_chunks(visit.ids, self._n[visit.ids], self._chunks(visit.ids)):
                calls = [ClientTasks(client, visit.tasks_for(client), self.memory.read(client)) for client in chunk]
                results = self._runner.visit_all(calls, source, visit.moment)
                for client, result in zip(chunk, results, strict=True):
                    if isinstance(result, Exception):
                        missing.append(Missing(client, reason(result)))
                        continue
                    if visit.keep:
                        self.memory.write(client, result.keeps)
                    answers.add(client, result.answers)
        return Outcome(answers.replies(), tuple(sorted(missing, key=lambda m: m.client)))

    def _chunks(self, ids: Tensor) -> int:
        """An accelerator computes as many clients at once as it has memory for."""
        if self._runner.placement.host:
            return CHUNKS
        samples = int(self._n[ids].sum()) * math.prod(self.federation.input_shape)
        return 1 + 4 * (samples + COPIES * len(ids) * self._size) // CHUNK_ON_DEVICE

    def close(self) -> None:
        """Nothing to release."""
