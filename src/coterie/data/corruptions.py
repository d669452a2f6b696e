"""Images made worse in one of six ways, by severity 1 (hardly seen) to 5 (hard to read).

The kinds are some of Hendrycks and Dietterich 2019 (arXiv:1903.12261); the strengths are this library's, for images of
about 8 to 64 pixels, so that figures are not those of CIFAR-10-C.
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

Corruption: TypeAlias = Literal["none", "noise", "impulse", "blur", "contrast", "brightness", "pixelate"]
Severity: TypeAlias = Literal[1, 2, 3, 4, 5]
CHUNK = 4096  # images at a time: as floats a large data set would need many times its room


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

    return Domain(torch.cat([worse(part) for part in data.x.split(CHUNK)]), data.y, data.scale)
