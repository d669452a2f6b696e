"""FedAdam: FedAvg with Adam at the server.

Reddi et al., Adaptive Federated Optimization, ICLR 2021 (Algorithm 2). With D = mean of the clients' models - w:
m <- beta1 m + (1 - beta1) D, v <- beta2 v + (1 - beta2) D^2, w <- w + eta m / (sqrt(v) + tau), from m = 0, v = tau^2.
There is no correction of the bias, so that the first steps are short. With beta1 = beta2 = 0 and a small tau every
parameter moves by eta in the direction of D; with a large tau it is momentum of rate eta / tau.
The server needs the mean of the clients' models only (secure aggregation possible).
Statistics (BatchNorm) are averaged, not moved. `server_optimizer=adam` does the same around any other method, with
moments for each cluster. The paper tunes eta and tau for each data set and weights clients equally in its algorithm, by
size in its experiments; the defaults here are one point of its grid, and sizes. Its tables (hundreds of clients,
thousands of rounds) were not run again: too long for the CPUs used here.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat

from coterie.clustering.server_optimizers import Adam
from coterie.core.constructors import dataclass
from coterie.core.types import STRICT, ShareBelowOne
from coterie.methods.contract import Releases
from coterie.methods.optimized_fedavg import OptimizedFedAvg


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
