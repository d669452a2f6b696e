"""IFCA (= HypCluster): K models; each client trains, and later uses, the one of least loss on its own data.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020 (Algorithm 1, option II,
model averaging). Mansour et al., Three Approaches for Personalization, 2020, call it HypCluster.
The server sees which cluster a client chose; per cluster it needs the mean of the models only.
The paper's clients all have equally many samples; otherwise, the authors' code (`papers/methods/ifca.py`)
gives them equal weights.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean_by, weigh
from coterie.core.model import Model
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import Best, Evaluate, Fit, Local
from coterie.methods.contract import Ask, Releases
from coterie.methods.k import ClusterCount, K


@dataclass(frozen=True, config=STRICT)
class IFCA:
    """K models; each client trains and uses the one of least loss on its own data."""

    paper: ClassVar[str] = "Ghosh et al. 2020, arXiv:2006.04088"
    releases: ClassVar[Releases | str] = Releases()

    k: ClusterCount = 4
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
        """K independent random models (copies of one model would stay equal)."""
        return K(self.k).random_models(model, roster, rng)

    def round(self, centers: Tensor, cohort: Cohort, ask: Ask) -> Tensor:
        """j = argmin_k F_i(theta_k), local steps from theta_j, mean per cluster."""
        centers = K(self.k).chosen(centers, self.local, cohort, ask)
        reply = ask(Fit(self.best(centers), local=self.local))
        return mean_by(reply.chosen, reply, weigh(reply, self.weights), empty=centers)

    def best(self, centers: Tensor) -> Best:
        """The center of least loss on a client's own training data."""
        return Best(centers)

    def predictor(self, centers: Tensor) -> Evaluate:
        """Everyone, newcomers too, predicts with the center of least loss on its own training data."""
        return Evaluate((self.best(centers),))
