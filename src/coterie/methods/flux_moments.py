"""FLUX's clusters, with what a newcomer's moments are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.core.client_table import ByClient
from coterie.methods.hard_clusters import Clusters, assigned


@dataclass(frozen=True, eq=False)
class Moments(Clusters):
    """Clusters, the model that descriptions are made with, and the mean description of each without labels."""

    encoder: Tensor  # (P,)
    scale: Tensor  # (2, 2) least and largest value of the blocks without labels: means, deviations
    means: Tensor  # (K, 2 size), or (0, 2 size) before the clustering
    of_clusters: ClassVar[tuple[str, ...]] = ("centers", "means")

    @staticmethod
    def fresh(w: Tensor, features: Tensor, size: int) -> Moments:
        """One model, and nobody has described anything."""
        return Moments(w[None], ByClient.empty(), features, w, w.new_zeros(2, 2), w.new_empty(0, 2 * size))

    def scaled(self, rows: Tensor) -> Tensor:
        """Descriptions without labels, on the scale of those that were clustered."""
        return _between(rows.reshape(len(rows), 2, -1), self.scale[0], self.scale[1])


def scaled(rows: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Descriptions (n, length) with every block of `size` numbers from 0 to 1, and each block's extremes before."""
    blocks = rows.reshape(len(rows), -1, size)
    low, high = blocks.amin((0, 2)), blocks.amax((0, 2))
    return _between(blocks, low, high), low, high


def _between(blocks: Tensor, low: Tensor, high: Tensor) -> Tensor:
    spread = torch.where(high > low, high - low, torch.ones_like(low))
    return ((blocks - low[:, None]) / spread[:, None]).flatten(1)


def found(state: Moments, ids: Tensor, labels: Tensor, points: Tensor, scale: tuple[Tensor, Tensor]) -> Moments:
    """These clients in these clusters, which start at the model that they were described with."""
    encoder, equal = state.centers[0], torch.ones(len(points), dtype=torch.float64)
    means = mean_by(labels, points, equal, empty=points[: int(labels.max()) + 1])
    centers = encoder.repeat(len(means), 1)
    state = replace(state, centers=centers, encoder=encoder, scale=torch.stack(scale), means=means)
    return assigned(state, ids, labels)
