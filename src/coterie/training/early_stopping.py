"""When a run ends before its last round: the validation loss has not improved for a while."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.training.events import RoundDone
from coterie.training.settings import Settings


class EarlyStopping:
    """Early stopping. It depends only on the rounds so far, so a resumed run stops in the same round."""

    def __init__(self, settings: Settings, history: Sequence[RoundDone]) -> None:
        self._patience = settings.stop_after
        self._best, self._best_round, self._last = math.inf, 0, 0
        for event in history:
            self.see(event)

    def see(self, event: RoundDone) -> None:
        """Note a round, which may have been validated."""
        if event.validation is None:
            return
        self._last = event.round
        if event.validation.loss < self._best:
            self._best, self._best_round = event.validation.loss, event.round

    @property
    def now(self) -> bool:
        """Whether the run stops now."""
        return self._patience is not None and self._last - self._best_round >= self._patience
