"""IFCA (= HypCluster): K models; each client trains, and later uses, the one of least loss on its own data.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020 (Algorithm 1, option II,
model averaging). Mansour et al., Three Approaches for Personalization, 2020, call it HypCluster.
The server sees which cluster a client chose; per cluster it needs the mean of the models only.
The paper's clients all hold equally many samples; where they do not, `weights="equal"` is the authors' code.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.domains import STRICT
from coterie.means import Weighting, mean_by, weigh
from coterie.methods.contract import Ask, enough_clients
from coterie.model import Model
from coterie.tasks import Best, Cohort, Evaluate, Fit, Local, Roster


@dataclass(frozen=True, config=STRICT)
class IFCA:
    """K models; each client trains and uses the one of least loss on its own data."""

    paper: ClassVar[str] = "Ghosh et al. 2020, arXiv:2006.04088"

    k: PositiveInt = 4
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
        """K independent random models (copies of one would never part)."""
        return torch.stack([model.init(rng) for _ in range(enough_clients(self.k, roster))])

    def round(self, centers: Tensor, cohort: Cohort, ask: Ask) -> Tensor:
        """j = argmin_k F_i(theta_k), local steps from theta_j, mean per cluster."""
        reply = ask(Fit(Best(centers), local=self.local))
        if reply.choice is None:  # nobody answered
            return centers
        return mean_by(reply.choice, reply.theta, weigh(reply, self.weights), empty=centers)

    def predictor(self, centers: Tensor) -> Evaluate:
        """Everyone, newcomers too, predicts with the center of least loss on its own training data."""
        return Evaluate((Best(centers),))
