"""Fielding's clusters: label shares of clients now, and of clusters when they were found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.methods.described import DescribedClusters


@dataclass(frozen=True, eq=False)
class LabelClusters(DescribedClusters):
    """Clusters by label shares, and where their centers were at the last clustering."""

    then: Tensor  # (K, classes), or (0, classes) before the first
    of_clusters: ClassVar[tuple[str, ...]] = ("centers", "then")


def means(state: LabelClusters) -> Tensor:
    """The mean label shares of each cluster now; an empty one keeps its own."""
    members = state.rows
    return mean_by(state.labels.at(members.ids), members.values, torch.ones(len(members.ids)), empty=state.then)
