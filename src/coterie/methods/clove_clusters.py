"""CLoVE's clusters: with the losses of each client under all models, as it sent them last."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.clustering.kmeans import centroids
from coterie.core.client_table import ByClient
from coterie.methods.hard_clusters import Clusters


@dataclass(frozen=True, eq=False)
class LossClusters(Clusters):
    """Clusters, and the loss vectors they were made of."""

    losses: ByClient  # (n, K) as each client sent them last

    def places(self) -> Tensor:
        """The mean loss vector of each cluster (K, K); infinitely far where there is none."""
        ids, k = self.losses.ids, len(self.centers)
        return centroids(self.losses.values, self.labels.at(ids), torch.ones(len(ids)), torch.full((k, k), torch.inf))
