"""Transforms of images and labels: scaled as the papers do it, rotated, corrupted, drawn in another style, renamed.

A rotation by quarter turns copies no samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from coterie.core.errors import CoterieError
from coterie.data.dataset import Dataset
from coterie.data.federation import Domain
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


Corruption: TypeAlias = Literal["none", "noise", "impulse", "blur", "contrast", "brightness", "pixelate"]
Severity: TypeAlias = Literal[1, 2, 3, 4, 5]
AT_ONCE = 4096  # images at a time: as floats a large data set would need many times its room


def noise(x: Tensor, deviation: float, rng: torch.Generator) -> Tensor:
    """Normal noise of this deviation on every pixel and channel."""
    return x + deviation * torch.randn(x.shape, generator=rng)


def impulse(x: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """This share of the pixels becomes black or white, in all channels."""
    drawn = torch.rand(len(x), 1, *x.shape[2:], generator=rng)
    return torch.where(drawn < share, (drawn < share / 2).float(), x)


def blur(x: Tensor, sigma: float, _: torch.Generator) -> Tensor:
    """A Gaussian blur of this many pixels; the border is continued outwards."""
    reach = min(max(1, round(3 * sigma)), *(side - 1 for side in x.shape[2:]))
    weights = torch.exp(-torch.arange(-reach, reach + 1).float().square() / (2 * sigma**2))
    kernel = (weights / weights.sum()).repeat(x.shape[1], 1, 1, 1)
    padded = functional.pad(x, (reach,) * 4, mode="replicate")
    across = functional.conv2d(padded, kernel, groups=x.shape[1])
    return functional.conv2d(across, kernel.transpose(2, 3), groups=x.shape[1])


def contrast(x: Tensor, left: float, _: torch.Generator) -> Tensor:
    """This share of each pixel's distance from its image's mean is left."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + left * (x - mean)


def brightness(x: Tensor, more: float, _: torch.Generator) -> Tensor:
    """Every pixel is brighter by as much."""
    return x + more


def pixelate(x: Tensor, share: float, _: torch.Generator) -> Tensor:
    """Fewer pixels, this share of them in each direction, drawn larger."""
    small = [max(1, round(share * side)) for side in x.shape[2:]]
    return functional.interpolate(functional.interpolate(x, small, mode="area"), x.shape[2:], mode="nearest")


Maker: TypeAlias = Callable[[Tensor, float, torch.Generator], Tensor]
# What makes it, and how strong it is at severity 1 to 5; pixels are from 0 to 1.
CORRUPTIONS: dict[str, tuple[Maker, tuple[float, ...]]] = {
    "noise": (noise, (0.05, 0.1, 0.2, 0.3, 0.45)),
    "impulse": (impulse, (0.02, 0.05, 0.1, 0.2, 0.35)),
    "blur": (blur, (0.4, 0.6, 0.9, 1.3, 1.8)),
    "contrast": (contrast, (0.75, 0.55, 0.4, 0.25, 0.15)),
    "brightness": (brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "pixelate": (pixelate, (0.8, 0.65, 0.5, 0.4, 0.3)),
}


def corrupted(data: Dataset, kind: Corruption, severity: Severity, seed: int) -> Domain:
    """The data set's images, corrupted; the same seed draws the same noise."""
    if data.x.ndim != 4 or min(data.x.shape[2:]) < 2:
        raise CoterieError(
            f"data.partition: only images can be corrupted, {data.name} has samples of {tuple(data.x.shape[1:])}",
            code="partition-not-applicable",
        )
    if kind == "none":
        return Domain(data.x, data.y, data.scale)
    make, strengths = CORRUPTIONS[kind]
    rng = torch.Generator().manual_seed(seed)
    low, high = (0.0, 255.0) if data.x.dtype == torch.uint8 else (float(data.x.min()), float(data.x.max()))
    spread = high - low if high > low else 1.0

    def worse(part: Tensor) -> Tensor:
        seen = make((part.float() - low) / spread, strengths[severity - 1], rng).clamp(0, 1) * spread + low
        return (seen if part.is_floating_point() else seen.round()).to(part.dtype)

    return Domain(torch.cat([worse(part) for part in data.x.split(AT_ONCE)]), data.y, data.scale)


Style: TypeAlias = Literal["plain", "thick", "slanted"]
SLANT = 0.3  # of the width that the top moves to the right for half a height


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
    return Domain(torch.cat([STYLES[style](part) for part in data.x.split(4096)]), data.y, data.scale)
