"""FedAvg with an optimizer at the server: what FedAvgM and FedAdam share."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.clustering.server_optimizers import Adam, Momentum
from coterie.core.cohort import Cohort, Roster
from coterie.core.constructors import dataclass
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.tasks import Evaluate, Fit
from coterie.core.types import STRICT
from coterie.methods.contract import Ask


@dataclasses.dataclass(frozen=True, eq=False)
class Optimized:
    """One model, and the moments of its parameters, which come first in it."""

    centers: Tensor  # (1, P)
    moments: Tensor  # (1 or 2, parameters)


@dataclass(frozen=True, config=STRICT)
class OptimizedFedAvg(ABC):
    """FedAvg whose mean is a step of an optimizer at the server."""

    no_server_optimizer: ClassVar[str] = "has one of its own; leave it out, or write method.name=fedavg"

    local: Local = Local()
    weights: Weighting = "size"

    @property
    @abstractmethod
    def server(self) -> Momentum | Adam:
        """The optimizer."""

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Optimized:
        """One random model."""
        w = model.init(rng)
        return Optimized(w[None], self.server.begin(w[: model.parameters]))

    def round(self, state: Optimized, cohort: Cohort, ask: Ask) -> Optimized:
        """A step from w towards the mean of what clients train from it."""
        (w,), trained = state.centers, state.moments.shape[1]
        reply = ask(Fit(All(w), local=self.local))
        found = mean(reply, weigh(reply, self.weights), empty=w)
        if torch.equal(found, w):  # nobody answered
            return state
        new, moments = self.server.step(w[:trained], found[:trained], state.moments)
        return Optimized(torch.cat([new, found[trained:]])[None], moments)

    def predictor(self, state: Optimized) -> Evaluate:
        """Everyone predicts with w."""
        return Evaluate((All(state.centers[0]),))
