"""Mild variants of drawn characters: the same characters by a thicker pen, or leaning to the right.

Stand-ins for kinds of writing that differ a little, as lower and upper case do, where a quarter turn differs a lot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from coterie.core.errors import CoterieError
from coterie.data.dataset import Dataset
from coterie.data.domain import Domain

Style: TypeAlias = Literal["plain", "thick", "slanted"]
SLANT = 0.3  # of the width that the top moves to the right for half a height
CHUNK = 4096  # images at a time: as floats a large data set would need many times its room


def background(x: Tensor) -> float:
    """The most frequent value of the images' corners: paper is bright in some data sets and dark in others."""
    corners = x[:, :, :: x.shape[2] - 1, :: x.shape[3] - 1]
    return float(corners.flatten().mode().values)


def thickened(x: Tensor) -> Tensor:
    """Every pixel becomes that of its 2x2 neighbourhood which is farthest from the background."""
    paper = background(x)
    away = (x.float() - paper).abs()
    wide, where = functional.max_pool2d(functional.pad(away, (0, 1, 0, 1)), 2, stride=1, return_indices=True)
    padded = functional.pad(x.float(), (0, 1, 0, 1), value=paper)
    found = padded.flatten(2).gather(2, where.flatten(2)).view_as(wide)
    return found if x.is_floating_point() else found.to(x.dtype)


def slanted(x: Tensor, slant: float = SLANT) -> Tensor:
    """Sheared: the top leans to the right, the bottom to the left; the background comes in from the sides."""
    paper = background(x)
    shear = torch.tensor([[1.0, slant, 0.0], [0.0, 1.0, 0.0]])
    grid = functional.affine_grid(shear.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    moved = functional.grid_sample(x.float() - paper, grid, align_corners=False) + paper
    return moved if x.is_floating_point() else moved.round().to(x.dtype)


STYLES: dict[Style, Callable[[Tensor], Tensor]] = {"plain": lambda x: x, "thick": thickened, "slanted": slanted}


def styled(data: Dataset, style: Style) -> Domain:
    """The data set's images in a style."""
    if data.x.ndim != 4:
        raise CoterieError(
            f"data.partition.styles: only images have a style, {data.name} has samples of {tuple(data.x.shape[1:])}",
            code="partition-not-applicable",
        )
    if style == "plain":
        return Domain(data.x, data.y, data.scale)
    return Domain(torch.cat([STYLES[style](part) for part in data.x.split(CHUNK)]), data.y, data.scale)
