"""What hard clustering methods share: K models, who belongs to which, and how the unmet begin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from coterie.byclient import ByClient
from coterie.means import mean_by
from coterie.tasks import Evaluate, Fitted, Pick


@dataclass(frozen=True, eq=False)
class Clusters:
    """K models and who belongs to which."""

    centers: Tensor  # (K, P)
    labels: ByClient  # of the clients met so far
    features: Tensor  # positions in a model that represent a client: never running statistics

    def represent(self, theta: Tensor) -> Tensor:
        """What of these models (or updates) is compared."""
        first, last = int(self.features[0]), int(self.features[-1])
        if last - first + 1 == len(self.features):
            return theta[..., first : last + 1]  # a view, not a copy
        return theta[..., self.features]

    def unmet(self, ids: Tensor) -> Tensor:
        """Those of the clients that belong to no cluster yet."""
        return ids[~self.labels.has(ids)]

    def start(self, ids: Tensor) -> Pick:
        """Everyone's own center; the unmet get the row behind them, the mean of all centers."""
        rows = torch.cat([self.centers, self.centers.mean(0, keepdim=True)])
        return Pick(rows, ByClient(ids, self.labels.at(ids, default=len(self.centers))))

    def predictor(self) -> Evaluate:
        """A client predicts with its cluster's model."""
        return Evaluate((Pick(self.centers, self.labels),))


C = TypeVar("C", bound=Clusters)


def assigned(state: C, ids: Tensor, labels: Tensor) -> C:
    """The state in which these clients belong to these clusters."""
    return replace(state, labels=state.labels.put(ids, labels))


def averaged(state: C, reply: Fitted, labels: Tensor, weights: Tensor) -> C:
    """The M-step: every cluster becomes the weighted mean of its members' models; an empty one keeps its own."""
    return replace(state, centers=mean_by(labels, reply, weights, empty=state.centers))
