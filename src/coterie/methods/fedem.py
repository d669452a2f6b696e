"""FedEM: every client is a mixture of M models; expectation-maximisation, spread over the clients.

Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021 (Algorithm 1).
E-step at the client: q_m(i) ~ pi_m exp(-loss_m(i)), pi_m = mean_i q_m(i). M-step: each component is trained on
samples weighted by q_m and averaged over clients by size. Only pi is kept, and it stays with its client.
The server needs the means of the clients' models only (secure aggregation possible).
A newcomer estimates pi on its own data with the components as they are.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.core.model import Model
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import All, Estimated, Evaluate, Fit, Fitted, Local, Own, Posterior, Score, Task
from coterie.methods.contract import Ask, Releases
from coterie.methods.k import ClusterCount, K


@dataclass(frozen=True, config=STRICT)
class FedEM:
    """Every client is a mixture of M models, found by expectation-maximisation."""

    paper: ClassVar[str] = "Marfoq et al. 2021, arXiv:2108.10252"
    releases: ClassVar[Releases | str] = (
        "every client sends one model per component; all of them, and its mixture weights, are its data"
    )

    k: ClusterCount = 3  # M, the number of components
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
        """M independent random components."""
        return K(self.k).random_models(model, roster, rng)

    def round(self, components: Tensor, cohort: Cohort, ask: Ask) -> Tensor:
        """E- and M-step in one visit; all responsibilities are those of the round's start."""
        components = K(self.k).chosen(components, self.local, cohort, ask)
        pi = Own("fedem.pi", All(torch.full((len(components),), 1 / len(components))))
        tasks: list[Task] = [
            Fit(
                All(w),
                local=self.local,
                weights=Posterior(components, m, pi),
                optimizer_slot=f"optimizer.{m}",
            )
            for m, w in enumerate(components)
        ]
        replies = ask([*tasks, Score(components, rule="posterior", prior=pi, save="fedem.pi")])
        fits = [r for r in replies if isinstance(r, Fitted)]
        return torch.stack([mean(r, weigh(r, self.weights), empty=w) for r, w in zip(fits, components, strict=True)])

    def predictor(self, components: Tensor) -> Evaluate:
        """sum_m pi_m p_m(y | x), a newcomer's pi estimated on the spot."""
        pi = Own("fedem.pi", Estimated(components, "posterior"))
        return Evaluate(tuple(All(w) for w in components), mixture=pi)
