"""Ways to spread a data set over clients: seeded, pure, every sample used at most once."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from coterie.data.dataset import Dataset
from coterie.data.federation import Domain, Federation, Ragged
from coterie.domains import STRICT, ShareBelowOne
from coterie.errors import CoterieError


def deal(n: int, clients: int, test: float, rng: np.random.Generator) -> tuple[list[Tensor], list[Tensor]]:
    """n samples shuffled and dealt to clients as evenly as they go; of each hand a share is held out for testing."""
    hands = np.array_split(rng.permutation(n), clients)
    if n < clients:
        raise CoterieError(f"data.partition: {n} samples cannot be dealt to {clients} clients; use fewer clients")
    held = [min(round(test * len(hand)), len(hand) - 1) for hand in hands]
    train = [torch.from_numpy(np.sort(hand[h:])) for hand, h in zip(hands, held, strict=True)]
    return train, [torch.from_numpy(np.sort(hand[:h])) for hand, h in zip(hands, held, strict=True)]


def rotate(x: Tensor, angle: float) -> Tensor:
    """Images (n, c, h, w) turned counter-clockwise by any angle, bilinear, zero outside."""
    radians = torch.deg2rad(torch.tensor(angle))
    cos, sin = torch.cos(radians), torch.sin(radians)
    ratio = x.shape[-2] / x.shape[-1]
    turn = torch.stack([torch.stack([cos, -sin * ratio, cos * 0]), torch.stack([sin / ratio, cos, cos * 0])])
    grid = functional.affine_grid(turn.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    turned = functional.grid_sample(x.float(), grid, align_corners=False)
    return turned if x.is_floating_point() else turned.round().to(x.dtype)


@dataclass(frozen=True, config=STRICT)
class IID:
    """Everyone alike: samples shuffled and dealt evenly."""

    paper: ClassVar[str] = "McMahan et al. 2017, arXiv:1602.05629"

    clients: PositiveInt = 40
    test: ShareBelowOne = 0.2  # share of a client's samples held out

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Deal."""
        train, test = deal(len(data.y), self.clients, self.test, rng)
        return Federation(
            (data.domain,),
            Ragged.of([t.numpy() for t in train]),
            Ragged.of([t.numpy() for t in test]),
            outputs=data.classes,
            name=f"{data.name}, iid",
        )


@dataclass(frozen=True, config=STRICT)
class Rotated:
    """Hidden clusters by rotation: client i sees its images turned by the angle of its cluster."""

    paper: ClassVar[str] = "Ghosh et al. 2020, arXiv:2006.04088 (section 6, rotated MNIST)"

    clients: PositiveInt = 40
    angles: Annotated[tuple[float, ...], Field(min_length=1)] = (0.0, 90.0, 180.0, 270.0)  # degrees, one per cluster
    test: ShareBelowOne = 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Deal evenly, then turn: client i belongs to cluster i * clusters // clients."""
        if data.x.ndim != 4:
            raise CoterieError(
                f"data.partition: only images can be rotated, {data.name} has samples of {tuple(data.x.shape[1:])}"
            )
        if len(self.angles) > self.clients:
            raise CoterieError(
                f"data.partition.angles: {len(self.angles)} clusters need at least as many clients, not {self.clients}"
            )
        train, test = deal(len(data.y), self.clients, self.test, rng)
        truth = np.arange(self.clients) * len(self.angles) // self.clients
        first = [int(cluster) * len(data.y) for cluster in truth]  # where the cluster's domain begins
        return Federation(
            tuple(self._domain(data, angle) for angle in self.angles),
            Ragged.of([rows.numpy() + start for rows, start in zip(train, first, strict=True)]),
            Ragged.of([rows.numpy() + start for rows, start in zip(test, first, strict=True)]),
            outputs=data.classes,
            truth=truth.astype(np.int64),
            name=f"{data.name}, rotated by {', '.join(f'{a:g}' for a in self.angles)} degrees",
        )

    def _domain(self, data: Dataset, angle: float) -> Domain:
        turns = angle / 90
        square = data.x.shape[-2] == data.x.shape[-1]
        if turns == int(turns) and (square or int(turns) % 2 == 0):
            return Domain(data.x, data.y, data.scale, turns=int(turns) % 4)  # exact, and nothing is copied
        return Domain(rotate(data.x, angle), data.y, data.scale)
