"""How many of the clients that a round asks must answer, for the round to stand."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from pydantic import NonNegativeInt

from coterie.core.errors import QuorumError
from coterie.core.settings import STRICT, Share, dataclass
from coterie.engines.contract import Missing, Outcome, Visit, named
from coterie.layers.contract import Layer, Onward, Round


@dataclass(frozen=True, config=STRICT)
class QuorumSettings:
    """The options of a run. Attempts themselves are `training.retry`."""

    quorum: Share = 0.5  # share of the asked clients that must answer
    retries: NonNegativeInt = 2  # how often a round below the quorum is repeated with other clients


class Quorum(Layer):
    """Over all visits of an attempt: a visit to a single client does not depend on that client alone."""

    key = "quorum"
    free: ClassVar = ("quorum", "retries")

    def __init__(self, share: float) -> None:
        self._share = share

    @classmethod
    def of(cls, settings: Any) -> Quorum:
        """There always is one, which may be 0."""
        return cls(settings.quorum)

    def begin(self, round: Round) -> None:
        """See `Layer.begin`."""
        self._round, self._asked = round, set[int]()
        self._missing: dict[int, Missing] = {}
        if not len(round.roster.ids):
            raise QuorumError(f"round {round.number + 1}: no client is connected")

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """See `Layer.visit`."""
        self._asked.update(visit.ids.tolist())
        outcome = onward(visit)
        self._missing.update({missing.client: missing for missing in outcome.missing})
        meant = max(len(self._round.cohort), len(self._asked))
        answered, needed = meant - len(self._missing), math.ceil(self._share * meant - 1e-9)
        if answered < needed:
            first = named(self._missing[min(self._missing)], self._round.names)
            raise QuorumError(
                f"round {self._round.number + 1}: {answered} of {meant} clients answered, the quorum is {needed}; "
                f"first missing: {first.who}: {first.reason}",
                self._round.number + 1,
                tuple(self._missing.values()),
            )
        return outcome
