"""Your own method: FedAvg with server momentum. From this folder also `coterie run method.name=own_method:FedAvgM`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie import All, Cohort, Evaluate, Fit, Local, Model, Roster, mean, run
from coterie.config import build, read
from coterie.methods.contract import Ask


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
    job = build(read(None))  # the demo's data and model
    print(run(FedAvgM(), job.federation, job.model, rounds=15))
