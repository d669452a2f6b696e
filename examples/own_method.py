"""Your own method: FedAvg with server momentum. From this folder also `coterie run method.name=own_method:FedAvgM`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie import All, Ask, Cohort, Evaluate, Fit, Local, Model, Roster, federate, mean, run
from coterie.testing import check_method


@dataclass(frozen=True, eq=False)
class Momentum:
    w: Tensor
    velocity: Tensor


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg whose server keeps a velocity."""

    beta: float = 0.7
    local: Local = Local(epochs=5, batch=8, lr=0.1)

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Momentum:
        w = model.init(rng)
        return Momentum(w, torch.zeros_like(w))

    def round(self, state: Momentum, cohort: Cohort, ask: Ask) -> Momentum:
        reply = ask(Fit(All(state.w), local=self.local))
        velocity = self.beta * state.velocity + mean(reply, reply.n, empty=state.w) - state.w
        return Momentum(state.w + velocity, velocity)

    def predictor(self, state: Momentum) -> Evaluate:
        return Evaluate((All(state.w),))


if __name__ == "__main__":
    check_method(FedAvgM())  # that it keeps the promises of a method
    print(run(FedAvgM(), federate("digits", "rotated"), "linear", rounds=15))
