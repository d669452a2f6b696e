"""Server optimizers around any method's mean: the step from a cluster's model to its clients' mean is a gradient.

Hsu et al. 2019, arXiv:1909.06335 (FedAvgM) and Reddi et al., ICLR 2021, arXiv:2003.00295 (FedAdam). With D = mean of
the clients' models - x: momentum v <- beta v + D, x <- x + eta v; Adam m <- beta1 m + (1 - beta1) D, v <- beta2 v +
(1 - beta2) D^2, x <- x + eta m / (sqrt(v) + tau), without correction of the bias, from m = 0 and v = tau^2.
Statistics (BatchNorm) are no parameters: they are averaged.

What goes around a run's means is `layers.server_optimizer`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from coterie.core.settings import STRICT, ShareBelowOne, dataclass


@dataclass(frozen=True, config=STRICT)
class Momentum:
    """Momentum at the server (FedAvgM)."""

    name: Literal["momentum"] = "momentum"
    beta: ShareBelowOne = 0.9  # of the momentum that is kept; 0 with eta 1 is the plain mean
    eta: PositiveFloat = 1.0  # the server's learning rate

    def begin(self, x: Tensor) -> Tensor:
        """The moments (1, P) of a model that has none yet."""
        return x.new_zeros(1, len(x))

    def step(self, x: Tensor, mean: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
        """The next model, and the moments after it."""
        moved = mean - x
        v = self.beta * moments[0] + moved
        return mean + (self.eta * v - moved), v[None]  # so written, beta 0 and eta 1 give the mean to the bit


@dataclass(frozen=True, config=STRICT)
class Adam:
    """Adam at the server (FedAdam)."""

    name: Literal["adam"] = "adam"
    eta: PositiveFloat = 0.1  # the server's learning rate: about how far a parameter moves in a round
    beta1: ShareBelowOne = 0.9  # of the first moment that is kept
    beta2: ShareBelowOne = 0.99  # of the second
    tau: PositiveFloat = 1e-3  # how adaptive it is: a step D well below tau moves a parameter by about eta D / tau

    def begin(self, x: Tensor) -> Tensor:
        """The moments (2, P) of a model that has none yet."""
        return torch.stack([torch.zeros_like(x), torch.full_like(x, self.tau**2)])

    def step(self, x: Tensor, mean: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
        """The next model, and the moments after it."""
        moved = mean - x
        m = self.beta1 * moments[0] + (1 - self.beta1) * moved
        v = self.beta2 * moments[1] + (1 - self.beta2) * moved.square()
        return x + self.eta * m / (v.sqrt() + self.tau), torch.stack([m, v])


ServerOptimizer: TypeAlias = Annotated[Momentum | Adam, Field(discriminator="name")]
