"""Many clients as one computation, in this process. With several workers see `workers`, which can do the same."""

from __future__ import annotations

import torch

from coterie.batch import Batch
from coterie.blocks import Blocks
from coterie.client import Call
from coterie.data.federation import Federation
from coterie.engines.contract import Gathering, Missing, Outcome, Visit, reason
from coterie.engines.dealing import deal
from coterie.memory import Memory
from coterie.model import Model

# The same hands for any number of workers, so that they give the same bits: what is computed together rounds together.
HANDS = 16


class Batched:
    """Visits clients hand by hand."""

    def __init__(self, model: Model, federation: Federation) -> None:
        self.federation = federation
        self.memory = Memory()
        self._bench = Batch(model)
        self._blocks = Blocks()
        self._n = federation.roster.n

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        answers = Gathering(visit, self._blocks)
        missing: list[Missing] = []
        with torch.random.fork_rng(devices=[]):
            for hand in deal(visit.ids, self._n[visit.ids], HANDS):
                calls = [Call(client, visit.asked_of(client), self.memory.read(client)) for client in hand]
                results = self._bench.visit_all(calls, self.federation, visit.moment)
                for client, result in zip(hand, results, strict=True):
                    if isinstance(result, Exception):
                        missing.append(Missing(client, reason(result)))
                        continue
                    if visit.keep:
                        self.memory.write(client, result.keeps)
                    answers.add(client, result.answers)
        return Outcome(answers.replies(), tuple(sorted(missing, key=lambda m: m.client)))

    def close(self) -> None:
        """Nothing to let go of."""
