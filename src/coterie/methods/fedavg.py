"""FedAvg: one model for all, the size-weighted mean of what clients train from it.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
The server needs the mean of the clients' models only (secure aggregation possible).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.core.model import Model
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import All, Evaluate, Fit, Local
from coterie.methods.contract import Ask, Releases


@dataclass(frozen=True, config=STRICT)
class FedAvg:
    """One model for all: the size-weighted mean of what clients train from it."""

    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629"
    releases: ClassVar[Releases | str] = Releases()

    local: Local = Local()
    weights: Weighting = "size"  # n_k / n

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
        """One random model."""
        return model.init(rng)

    def round(self, w: Tensor, cohort: Cohort, ask: Ask) -> Tensor:
        """w <- sum_k n_k/n w_k, where w_k is what client k trains from w."""
        reply = ask(Fit(All(w), local=self.local))
        return mean(reply, weigh(reply, self.weights), empty=w)

    def predictor(self, w: Tensor) -> Evaluate:
        """Everyone predicts with w."""
        return Evaluate((All(w),))
