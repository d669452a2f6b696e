"""FedAvgM and FedAdam: FedAvg with an optimizer at the server. With D = mean of the clients' models - w:

FedAvgM, Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019: v <- beta v + D, w <- w + eta v. beta 0 and eta 1 is FedAvg, to the bit. The paper writes the
learning rate of clients only; eta is that of Reddi et al.
FedAdam, Reddi et al., Adaptive Federated Optimization, ICLR 2021 (Algorithm 2): m <- beta1 m + (1 - beta1) D,
v <- beta2 v + (1 - beta2) D^2, w <- w + eta m / (sqrt(v) + tau), from m = 0, v = tau^2. There is no correction of the
bias, so that the first steps are short. With beta1 = beta2 = 0 and a small tau every parameter moves by eta in the
direction of D; with a large tau it is momentum of rate eta / tau. The paper tunes eta and tau for each data set and
weights clients equally in its algorithm, by size in its experiments; the defaults here are one point of its grid.

The server needs the mean of the clients' models only (secure aggregation possible). Statistics (BatchNorm) are
averaged, not moved. `server_optimizer` does the same around any other method, with moments for each cluster. Neither
paper's curves and tables (hundreds of clients, thousands of rounds) were run again: too long for the CPUs used here.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.clustering.server_optimizers import Adam, Momentum
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.settings import STRICT, ShareBelowOne, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import Evaluate, Fit
from coterie.methods.contract import Ask, Releases


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


@dataclass(frozen=True, config=STRICT)
class FedAvgM(OptimizedFedAvg):
    """FedAvg with momentum at the server."""

    paper: ClassVar[str] = "Hsu et al. 2019, arXiv:1909.06335"
    releases: ClassVar[Releases | str] = Releases()

    beta: ShareBelowOne = 0.9  # of the momentum that is kept
    eta: PositiveFloat = 1.0  # the server's learning rate

    @property
    def server(self) -> Momentum:
        """v <- beta v + D; w <- w + eta v."""
        return Momentum(beta=self.beta, eta=self.eta)


@dataclass(frozen=True, config=STRICT)
class FedAdam(OptimizedFedAvg):
    """FedAvg with Adam at the server."""

    paper: ClassVar[str] = "Reddi et al. 2021, arXiv:2003.00295"
    releases: ClassVar[Releases | str] = Releases()

    eta: PositiveFloat = 0.1  # the server's learning rate: about how far a parameter moves in a round
    beta1: ShareBelowOne = 0.9  # of the first moment that is kept
    beta2: ShareBelowOne = 0.99  # of the second
    tau: PositiveFloat = 1e-3  # how adaptive it is: a step D well below tau moves a parameter by about eta D / tau

    @property
    def server(self) -> Adam:
        """m and v, then w <- w + eta m / (sqrt(v) + tau)."""
        return Adam(eta=self.eta, beta1=self.beta1, beta2=self.beta2, tau=self.tau)
