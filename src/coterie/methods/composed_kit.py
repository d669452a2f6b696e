"""What a composed method keeps: clusters, and the mean representation of each."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.client_table import ByClient
from coterie.core.local import GRADIENT
from coterie.core.references import All, Pick
from coterie.core.replies import Fitted
from coterie.core.tasks import Fit, Score
from coterie.methods.contract import Ask
from coterie.methods.hard_clusters import Clusters


@dataclasses.dataclass(frozen=True, eq=False)
class Kit(Clusters):
    """Clusters, the mean representation of each, and how long they have not changed."""

    means: Tensor  # (K, d)
    anchor: Tensor  # (P,) where gradients are taken
    unchanged: int  # clusterings in a row
    done: bool  # no more clustering
    last: ByClient = dataclasses.field(default_factory=lambda: ByClient.empty(torch.float32))  # see `composed_drift`
    worst: float = 0.0  # the highest mean loss of a round since the clustering
    alarmed: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    looks: ByClient = dataclasses.field(default_factory=lambda: ByClient.empty(torch.float32))
    of_clusters: ClassVar[tuple[str, ...]] = ("centers", "means")

    def measured_from(self) -> Tensor:
        """Where gradients are taken."""
        return self.anchor[None]

    @staticmethod
    def fresh(centers: Tensor, features: Tensor) -> Kit:
        """The state before the first clustering."""
        return Kit(centers, ByClient.empty(), features, centers.new_empty(0, 0), centers[0], 0, False)

    def of_least_loss(self, losses: Represented, anew: bool) -> Pick:
        """The row that was just found best for each client; unless `anew`, a client keeps the row it has."""
        best, own = losses.points.argmin(1), self.labels.at(losses.ids, default=-1)
        return Pick(self.centers, ByClient(losses.ids, best if anew else torch.where(own < 0, best, own)))

    def losses(self, ask: Ask, on: Tensor | None = None) -> Represented:
        """The loss of each center on each of these clients' data."""
        scored = ask(Score(self.centers, on=on))
        return Represented(scored.ids, scored.scores)

    def gradients(self, ask: Ask, on: Tensor | None = None) -> Represented:
        """The gradient of the anchor on each of these clients' data."""
        reply = ask(Fit(All(self.anchor), local=GRADIENT, keep=False, on=on))
        return Represented(reply.ids, self.represent(self.anchor - reply.models))

    def models(self, reply: Fitted, since: Pick | None) -> Represented:
        """Clients represented by their models, or by their updates since where they started."""
        moved = reply.models if since is None else reply.models - since.centers[reply.chosen]
        return Represented(reply.ids, self.represent(moved))


@dataclasses.dataclass(frozen=True, eq=False)
class Represented:
    """The representation of each of these clients."""

    ids: Tensor
    points: Tensor  # (n, d)

    def of(self, ids: Tensor) -> Represented:
        """Only those of these clients."""
        both = torch.isin(self.ids, ids)
        return Represented(self.ids[both], self.points[both])
