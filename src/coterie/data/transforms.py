"""Transforms of a data set: images scaled as the papers do it, rotated, and labels renamed.

Only a rotation by other than quarter turns copies samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from coterie.core.errors import CoterieError
from coterie.data.dataset import Dataset
from coterie.data.domain import Domain
from coterie.data.scale import Scale

Normalise: TypeAlias = Literal["unit", "symmetric", "standard", "pixel"]

CHUNK = 256  # images at a time: 256 squares of bytes still add up exactly in single precision


def rotate(x: Tensor, angle: float) -> Tensor:
    """Images (n, c, h, w) turned counter-clockwise by any angle, bilinear, zero outside."""
    radians = torch.deg2rad(torch.tensor(angle))
    cos, sin = torch.cos(radians), torch.sin(radians)
    ratio = x.shape[-2] / x.shape[-1]
    turn = torch.stack([torch.stack([cos, -sin * ratio, cos * 0]), torch.stack([sin / ratio, cos, cos * 0])])
    parts = []
    for part in x.split(4096):  # as floats a large data set would need many times its room
        grid = functional.affine_grid(turn.expand(len(part), 2, 3), list(part.shape), align_corners=False)
        turned = functional.grid_sample(part.float(), grid, align_corners=False)
        parts.append(turned if x.is_floating_point() else turned.round().to(x.dtype))
    return torch.cat(parts)


def turned(data: Dataset, angle: float) -> Domain:
    """Images turned counter-clockwise, exactly where the angle is a multiple of 90 degrees."""
    if data.x.ndim != 4:
        raise CoterieError(
            f"data.partition: only images can be rotated, {data.name} has samples of {tuple(data.x.shape[1:])}",
            code="partition-not-applicable",
        )
    turns = angle / 90
    square = data.x.shape[-2] == data.x.shape[-1]
    if turns == int(turns) and (square or int(turns) % 2 == 0):
        return Domain(data.x, data.y, data.scale, turns=int(turns) % 4)
    return Domain(rotate(data.x, angle), data.y, data.scale)


def relabelled(data: Dataset, labels: Sequence[int]) -> Domain:
    """Label c is called labels[c]."""
    return Domain(data.x, data.y, data.scale, relabel=torch.tensor(labels))


def want_labels(data: Dataset, why: str) -> None:
    """Refuse a regression where labels are needed."""
    if data.kind == "regression":
        raise CoterieError(
            f"data.partition: {data.name} has targets, not labels, and cannot be spread by {why}",
            code="partition-not-applicable",
        )


def check_classes(key: str, classes: Sequence[int], data: Dataset) -> None:
    """Refuse classes that the data set does not have."""
    wrong = [c for c in classes if not 0 <= c < data.classes]
    if wrong:
        raise CoterieError(
            f"data.partition.{key}: {data.name} has classes 0..{data.classes - 1}, not {wrong[0]}",
            code="partition-impossible",
        )


def image_scale(x: Tensor, how: Normalise, train_rows: NDArray[np.bool_] | None = None) -> Scale:
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
