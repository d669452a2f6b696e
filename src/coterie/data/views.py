"""Ways to look at a data set: turned, relabelled. A view copies no samples, unless they are turned by odd angles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from coterie.data.dataset import Dataset
from coterie.data.federation import Domain
from coterie.errors import CoterieError


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
            f"data.partition: only images can be rotated, {data.name} has samples of {tuple(data.x.shape[1:])}"
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
        raise CoterieError(f"data.partition: {data.name} has targets, not labels, and cannot be spread by {why}")


def check_classes(key: str, classes: Sequence[int], data: Dataset) -> None:
    """Refuse classes that the data set does not have."""
    wrong = [c for c in classes if not 0 <= c < data.classes]
    if wrong:
        raise CoterieError(f"data.partition.{key}: {data.name} has classes 0..{data.classes - 1}, not {wrong[0]}")
