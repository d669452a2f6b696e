"""A data set before it is spread over clients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.data.federation import Scale


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples, as stored; `scale` makes inputs of them."""

    name: str
    x: Tensor  # (n, channels, height, width) or (n, features)
    y: Tensor  # (n,) int64
    classes: int
    scale: Scale
