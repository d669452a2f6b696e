"""FedAvg+ and FedProx+: K independent models for all, that vote.

The ensembles that Ma et al. 2022 (WeCFL, section 7) compare with: as many models as a clustered method has,
without clusters. Every visit trains all K, so that each tensor travels once.
The paper says "soft voting", by which the mean of probabilities is meant elsewhere (voting: soft); the authors' code
averages logits, which is the default here.
The server needs the means of the clients' models only (secure aggregation possible).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from coterie.clustering.averaging import Weighting, mean, weigh
from coterie.core.model import Model
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import All, Evaluate, Fit, Local
from coterie.methods.contract import Ask


@dataclass(frozen=True, config=STRICT)
class FedAvgPlus:
    """An ensemble of K FedAvg models, by the average of their logits."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187 (section 7)"

    k: PositiveInt = 4
    local: Local = Local()
    weights: Weighting = "size"
    voting: Literal["logits", "soft"] = "logits"  # what is averaged: the members' logits, or their probabilities

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Tensor:
        """K independent random models."""
        return torch.stack([model.init(rng) for _ in range(self.k)])

    def round(self, members: Tensor, cohort: Cohort, ask: Ask) -> Tensor:
        """K rounds of FedAvg side by side."""
        replies = ask([self.fit(w, slot) for slot, w in enumerate(members)])
        return torch.stack([mean(r, weigh(r, self.weights), empty=w) for r, w in zip(replies, members, strict=True)])

    def fit(self, w: Tensor, slot: int) -> Fit:
        """A member's training."""
        return Fit(All(w), local=self.local, optimizer_slot=f"optimizer.{slot}")

    def predictor(self, members: Tensor) -> Evaluate:
        """Everyone predicts with the average of the members' logits, or of their probabilities."""
        models = tuple(All(w) for w in members)
        if self.voting == "logits":
            return Evaluate(models, average=True)
        return Evaluate(models, mixture=All(torch.full((self.k,), 1.0 / self.k)))


@dataclass(frozen=True, config=STRICT)
class FedProxPlus(FedAvgPlus):
    """An ensemble of K FedProx models, by the average of their logits."""

    mu: NonNegativeFloat = 0.1

    def fit(self, w: Tensor, slot: int) -> Fit:
        """A member's training, held near its round's start."""
        return Fit(All(w), anchor=All(w), mu=self.mu, local=self.local, optimizer_slot=f"optimizer.{slot}")
