"""Simulated dropout: some of the clients that are asked do not answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.core.seeds import Purpose, generator
from coterie.core.settings import STRICT, ShareBelowOne, dataclass
from coterie.engines.contract import Missing, Outcome, Visit
from coterie.layers.contract import NOBODY, Layer, Onward, Round


@dataclass(frozen=True, config=STRICT)
class DropoutSettings:
    """The option of a run."""

    dropout: ShareBelowOne = 0.0  # simulated: the chance that a client asked does not answer


class Dropout(Layer):
    """Who drops out of an attempt is not sent to: it is drawn once, for all visits of the attempt."""

    key = "dropout"

    def __init__(self, chance: float) -> None:
        self._chance, self._gone = chance, NOBODY

    @classmethod
    def of(cls, settings: Any) -> Dropout | None:
        """None where nobody drops out."""
        return cls(settings.dropout) if settings.dropout else None

    def begin(self, round: Round) -> None:
        """See `Layer.begin`."""
        self._gone = dropouts(round.cohort, self._chance, round.seed, round.number, round.attempt)

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """See `Layer.visit`."""
        gone = torch.isin(visit.ids, self._gone)
        outcome = onward(replace(visit, ids=visit.ids[~gone]))
        lost = tuple(Missing(client, "dropped out (simulated)") for client in visit.ids[gone].tolist())
        return replace(outcome, missing=(*lost, *outcome.missing))


def dropouts(cohort: Tensor, chance: float, seed: int, round: int, attempt: int) -> Tensor:
    """Which of these clients do not answer, the same for every method."""
    rng = generator(seed, Purpose.DROPOUT, round, attempt)
    return cohort[torch.from_numpy(rng.random(len(cohort)) < chance)]
