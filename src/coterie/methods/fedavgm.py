"""FedAvgM: FedAvg with momentum at the server.

Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.
With D = mean of the clients' models - w: v <- beta v + D, w <- w + eta v. beta 0 and eta 1 is FedAvg, to the bit.
The server needs the mean of the clients' models only (secure aggregation possible).
Statistics (BatchNorm) are averaged, not moved. `server_optimizer=momentum` does the same around any other method, with
moments for each cluster. The paper writes the learning rate of clients only; eta is that of Reddi et al. (`fedadam`).
Its curves (CIFAR-10, thousands of rounds) were not run again: too long for the CPUs used here.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat

from coterie.clustering.server_optimizers import Momentum
from coterie.core.constructors import dataclass
from coterie.core.types import STRICT, ShareBelowOne
from coterie.methods.contract import Releases
from coterie.methods.optimized_fedavg import OptimizedFedAvg


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
