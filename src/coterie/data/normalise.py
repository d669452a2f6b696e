"""How the bytes of images become inputs, in the ways the papers do it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.data.federation import Scale

Normalise: TypeAlias = Literal["unit", "symmetric", "standard", "pixel"]

CHUNK = 256  # images at a time: 256 squares of bytes still add up exactly in single precision


def scale_of(x: Tensor, how: Normalise, train_rows: NDArray[np.bool_] | None = None) -> Scale:
    """The scale for images (n, channels, height, width) of bytes; `train_rows` marks the training set (None: all).

    unit: 0..1 (StoCFL). symmetric: -1..1 (WeCFL, CAM). standard: mean 0 and deviation 1 per channel of the training
    set. pixel: the same per pixel of ALL images, as FedProx and FedGroup do: (raw - mean) / (deviation + 0.001), raw
    being 0..255; a pixel that is always the same becomes 0.
    """
    if how == "unit":
        return Scale(255.0)
    if how == "symmetric":
        return Scale(255.0, 0.5, 0.5)
    if how == "pixel":
        mean, variance = _moments(x, None)
        return Scale(1.0, mean.float(), (variance.sqrt() + 0.001).float())
    mean, variance = _moments(x, train_rows)
    inside = variance.mean((1, 2), keepdim=True)  # within pixels, and below between them
    overall = mean.mean((1, 2), keepdim=True)
    std = (inside + (mean - overall).square().mean((1, 2), keepdim=True)).sqrt() / 255
    return Scale(255.0, (overall / 255).float(), torch.where(std > 0, std, 1.0).float())


def _moments(x: Tensor, rows: NDArray[np.bool_] | None) -> tuple[Tensor, Tensor]:
    """Mean and variance of each pixel; sums of whole numbers, so exact whatever the order."""
    total = torch.zeros(x.shape[1:], dtype=torch.float64)
    squares = torch.zeros_like(total)
    count = 0
    keep = None if rows is None else torch.from_numpy(rows)
    for start in range(0, len(x), CHUNK):
        part = x[start : start + CHUNK].float()
        if keep is not None:
            part = part[keep[start : start + CHUNK]]
        total += part.sum(0)
        squares += part.square().sum(0)
        count += len(part)
    mean = total / max(count, 1)
    return mean, (squares / max(count, 1) - mean.square()).clamp_(min=0)
