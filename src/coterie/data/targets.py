"""The scale of regression targets: models learn targets of mean 0 and deviation 1, people read the original units."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TargetScale:
    """Targets (n, k) as a model learns them, and back: (y - mean) / std. In double, which large targets need."""

    mean: Tensor  # (k,)
    std: Tensor  # (k,)

    @staticmethod
    def of(y: Tensor) -> TargetScale:
        """As measured on these targets (n, k); a target that is always the same is only shifted."""
        wide = y.double()
        std, mean = torch.std_mean(wide, 0, correction=0)
        constant = wide.amin(0) == wide.amax(0)  # by rounding, its deviation need not be 0
        return TargetScale(mean, torch.where(constant | (std == 0), 1.0, std))

    def __call__(self, y: Tensor) -> Tensor:
        """Original units to what a model learns."""
        return ((y.double() - self.mean) / self.std).to(y.dtype)

    def undo(self, y: Tensor) -> Tensor:
        """What a model says, in original units (double)."""
        return y.double() * self.std + self.mean

    def bytes(self) -> bytes:
        """What it does, for a checksum."""
        return b"".join(part.contiguous().numpy().tobytes() for part in (self.mean, self.std))
