"""Models that lie elsewhere, for tests: they note what is asked of them."""

from __future__ import annotations

import torch
from torch import Tensor

THETA = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


class Far:
    """Says what is asked of it."""

    def __init__(self, theta: Tensor) -> None:
        self._theta = theta
        self.asked: list[str] = []

    dtype = torch.float32
    nbytes = 24

    def __len__(self) -> int:
        return len(self._theta)

    def combined(self, share: Tensor) -> Tensor:
        self.asked.append("combined")
        return share @ self._theta

    def gathered(self) -> Tensor:
        self.asked.append("gathered")
        return self._theta

    def norms(self, choice: Tensor | None) -> Tensor:
        self.asked.append("norms")
        moved: Tensor = torch.linalg.vector_norm(self._theta - THETA[0], dim=1)
        return moved
