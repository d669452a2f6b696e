"""What methods keep that cluster clients by what their data looks like: clusters, and each client's description."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.core.client_table import ByClient
from coterie.core.cohort import Cohort
from coterie.methods.hard_clusters import Clusters, assigned

D = TypeVar("D", bound="DescribedClusters")


@dataclass(frozen=True, eq=False)
class DescribedClusters(Clusters):
    """Clusters, and the descriptions of the clients in them."""

    rows: ByClient  # (n, length)

    @staticmethod
    def fresh(w0: Tensor, features: Tensor, length: int) -> DescribedClusters:
        """One model, and nobody is in a cluster."""
        return DescribedClusters(w0[None], ByClient.empty(), features, ByClient.empty(w0.dtype, (length,)))

    def mean_by_cluster(self, values: Tensor) -> Tensor:
        """The mean (K, m) of values (n, m) of the described clients, over those of each cluster; an empty one: inf."""
        none = torch.full((len(self.centers), values.shape[1]), torch.inf, dtype=values.dtype)
        return mean_by(self.labels.at(self.rows.ids), values, torch.ones(len(values)), empty=none)

    def put(self: D, ids: Tensor, labels: Tensor, rows: Tensor) -> D:
        """With these clients in these clusters, by these descriptions."""
        return replace(assigned(self, ids, labels), rows=self.rows.put(ids, rows))


def everyone(cohort: Cohort, most: int) -> Tensor:
    """All clients there are or, where they are more than can be compared, so many of them drawn at random."""
    ids = cohort.roster.ids
    if len(ids) <= most:
        return ids
    return ids[torch.from_numpy(np.sort(cohort.rng.choice(len(ids), most, replace=False)))]
