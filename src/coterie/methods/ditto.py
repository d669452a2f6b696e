"""Ditto: FedAvg's model, and a personal model per client that is kept near it.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021 (Algorithm 1):
v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w)). Personal models stay with their clients.
The server needs the mean of the clients' copies of w only (secure aggregation possible).
A newcomer predicts with w until it has trained a model of its own.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import NonNegativeFloat
from torch import Tensor

from coterie.clustering.averaging import mean, weigh
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort
from coterie.core.tasks import All, Evaluate, Fit, Own
from coterie.methods.contract import Ask, Releases
from coterie.methods.fedavg import FedAvg


@dataclass(frozen=True, config=STRICT)
class Ditto(FedAvg):
    """FedAvg, and a personal model per client that is kept near the shared one."""

    paper: ClassVar[str] = "Li et al. 2021, arXiv:2012.04221"
    releases: ClassVar[Releases | str] = (
        "its personal models never leave the clients, but nobody has worked out what else it releases here"
    )

    lam: NonNegativeFloat = 0.1  # 0 is purely local training

    def round(self, w: Tensor, cohort: Cohort, ask: Ask) -> Tensor:
        """Both in one visit; only the shared model is sent."""
        personal = Own("ditto.v", All(w))
        shared, _ = ask(
            [
                Fit(All(w), local=self.local),
                Fit(
                    personal,
                    anchor=All(w),
                    mu=self.lam,
                    local=self.local,
                    save="ditto.v",
                    send=False,
                    optimizer_slot="ditto.optimizer",
                ),
            ]
        )
        return mean(shared, weigh(shared, self.weights), empty=w)

    def predictor(self, w: Tensor) -> Evaluate:
        """A client predicts with its personal model."""
        return Evaluate((Own("ditto.v", All(w)),))
