"""Local: each client trains a model of its own on its own data, and nobody learns from anybody.

The baseline that says what a federation is worth: a client that does worse elsewhere than here loses by taking part.
All clients start from the same random model. A client trains in the rounds it takes part in, as with every method, so
compare at equal participation. Models stay with their clients; the server sees none.
A newcomer has not trained, and nobody's model was sent that it could be given: it predicts with the random start, which
is what a client without data and without a federation has.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import Tensor

from coterie.core.model import Model
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import All, Evaluate, Fit, Local, Own
from coterie.methods.contract import Ask, Releases

MODEL = "local.model"  # where a client keeps its model


@dataclass(frozen=True, config=STRICT)
class LocalOnly:
    """Each client alone: it trains its own model on its own data (a baseline)."""

    paper: ClassVar[str] = "a baseline"
    shares_no_model: ClassVar[str] = "every client of local has a model of its own, and no model is shared"
    releases: ClassVar[Releases | str] = "no model leaves a client, so there is nothing to make private"

    local: Local = Local()

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
        """One random model, which everyone starts from."""
        return model.init(rng)

    def round(self, w: Tensor, cohort: Cohort, ask: Ask) -> Tensor:
        """Everyone trains its own model further; nothing is sent."""
        ask(Fit(Own(MODEL, All(w)), local=self.local, save=MODEL, send=False))
        return w

    def predictor(self, w: Tensor) -> Evaluate:
        """A client predicts with its own model; one that never trained, with the random start."""
        return Evaluate((Own(MODEL, All(w)),))
