"""How stored numbers become a network's inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.settings import explained
from coterie.data.cells import column_names, columns


@explained
@dataclass(frozen=True, eq=False)
class Scale:
    """How stored numbers become inputs: (x / divisor - mean) / std, with numbers or tensors that fit a sample."""

    divisor: float = 1.0
    mean: float | Tensor = 0.0
    std: float | Tensor = 1.0
    features: tuple[str, ...] | None = None  # the columns of a table that it takes, in their order

    def __call__(self, x: Tensor | ArrayLike) -> Tensor:
        if self.features is not None and column_names(x) is not None:
            x = columns(x, self.features, "scale")
        stored = x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
        x = stored.to(torch.get_default_dtype())
        if self.plain:
            return x
        self._check_shape(x)
        # In place where `to` has made a copy: a client's samples are scaled anew for every visit.
        x = x / self.divisor if x is stored else x.div_(self.divisor)
        if not self.uniform or self.mean != 0.0:  # or nothing would change, and it takes time
            x.sub_(self.mean)
        return x if self.uniform and self.std == 1.0 else x.div_(self.std)

    def _check_shape(self, x: Tensor) -> None:
        for part in (self.mean, self.std):
            # Every number of a sample has a mean of its own, or shares one: never are there more means than numbers.
            if isinstance(part, Tensor) and any(
                a not in (1, b) for a, b in zip(reversed(part.shape), reversed(x.shape), strict=False)
            ):
                raise CoterieError(
                    f"data: samples of shape {tuple(x.shape[1:])} cannot be scaled as those that were trained on, of "
                    f"shape {tuple(part.shape)}; give the same inputs",
                    code="model-shape",
                )

    @property
    def uniform(self) -> bool:
        """The same for every number of a sample, wherever it lies."""
        return isinstance(self.mean, float) and isinstance(self.std, float)

    @property
    def plain(self) -> bool:
        """Whether it leaves numbers as they are."""
        return self.uniform and (self.divisor, self.mean, self.std) == (1.0, 0.0, 1.0)

    def bytes(self) -> bytes:
        """What it does, for a checksum."""
        parts = (torch.as_tensor(value, dtype=torch.float64) for value in (self.divisor, self.mean, self.std))
        return b"".join(part.contiguous().numpy().tobytes() for part in parts)


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
