"""FedProx: FedAvg whose clients are held near the server's model by mu/2 |w - w_t|^2.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (Eq. 2).
The server needs the mean of the clients' models only (secure aggregation possible).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeFloat
from torch import Tensor

from coterie.clustering.averaging import mean, weigh
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort
from coterie.core.tasks import All, Fit
from coterie.methods.contract import Ask, Releases
from coterie.methods.fedavg import FedAvg


@dataclass(frozen=True, config=STRICT)
class FedProx(FedAvg):
    """FedAvg whose clients are held near the server's model by a proximal term."""

    paper: ClassVar[str] = "Li et al. 2020, arXiv:1812.06127"
    releases: ClassVar[Releases | str] = Releases()

    mu: NonNegativeFloat = 0.1  # strength of the proximal term; 0 is FedAvg

    def round(self, w: Tensor, cohort: Cohort, ask: Ask) -> Tensor:
        """As FedAvg, each client minimising F_k(w_k) + mu/2 |w_k - w|^2."""
        reply = ask(Fit(All(w), anchor=All(w), mu=self.mu, local=self.local))
        return mean(reply, weigh(reply, self.weights), empty=w)
