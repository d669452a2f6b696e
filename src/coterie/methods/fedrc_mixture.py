"""FedRC's models, and what is known of the classes in their clusters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.client_table import ByClient

FLOOR = 1e-8  # of a sum: a class that nobody has is not divided by 0


@dataclass(frozen=True, eq=False)
class RobustMixture:
    """K models, and each client's sums of gamma by model and class."""

    centers: Tensor  # (K, P)
    sums: ByClient  # (n, K * classes)
    classes: int

    @property
    def shares(self) -> Tensor:
        """C (K, classes): the share of each class in each cluster."""
        k = len(self.centers)
        if not len(self.sums.ids):
            return torch.full((k, self.classes), 1 / self.classes)
        total = self.sums.values.double().sum(0).reshape(k, self.classes).clamp(min=FLOOR)
        return (total / total.sum(1, keepdim=True)).float()
