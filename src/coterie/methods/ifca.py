"""IFCA (= HypCluster): K models; each client trains, and later uses, the one of least loss on its own data.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020 (Algorithm 1, option II,
model averaging). Mansour et al., Three Approaches for Personalization, 2020, call it HypCluster.
The server sees which cluster a client chose; per cluster it needs the mean of the models only.
The paper's clients all hold equally many samples; where they do not, `weights="equal"` is the authors' code.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.domains import STRICT
from coterie.means import Weighting, mean_by, weigh
from coterie.methods.contract import Ask
from coterie.methods.counting import ClusterCount, chosen_rows, random_models
from coterie.model import Model
from coterie.tasks import Best, Cohort, Evaluate, Fit, Local, Roster


@dataclass(frozen=True, config=STRICT)
class IFCA:
    """K models; each client trains and uses the one of least loss on its own data."""

    paper: ClassVar[str] = "Ghosh et al. 2020, arXiv:2006.04088"

    k: ClusterCount = 4
    local: Local = Local()
    weights: Weighting = "size"
    choose_by: Literal["loss", "accuracy"] = "loss"  # "accuracy" is the CAM authors' code

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
        """K independent random models (copies of one would never part)."""
        return random_models(self.k, model, roster, rng)

    def round(self, centers: Tensor, cohort: Cohort, ask: Ask) -> Tensor:
        """j = argmin_k F_i(theta_k), local steps from theta_j, mean per cluster."""
        centers = chosen_rows(centers, self.k, self.local, cohort, ask)
        reply = ask(Fit(Best(centers, by=self.choose_by), local=self.local))
        if reply.choice is None:  # nobody answered
            return centers
        return mean_by(reply.choice, reply, weigh(reply, self.weights), empty=centers)

    def predictor(self, centers: Tensor) -> Evaluate:
        """Everyone, newcomers too, predicts with the center of least loss on its own training data."""
        return Evaluate((Best(centers, by=self.choose_by),))
