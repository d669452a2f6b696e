"""What FL+HC keeps of its one clustering: mean updates, by which later clients find their cluster."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.clustering.similarity import Metric
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.replies import Fitted
from coterie.core.tasks import Fit
from coterie.methods.contract import Ask
from coterie.methods.hard_clusters import Clusters, assigned, by_angle


@dataclasses.dataclass(frozen=True, eq=False)
class Hierarchy(Clusters):
    """Clusters, and the mean updates by which they were found (None before)."""

    stem: Tensor | None = None  # (P,) the model that all updates started from
    updates: Tensor | None = None  # (K, d) mean update of each cluster
    of_clusters: ClassVar[tuple[str, ...]] = ("centers", "updates")

    def measured_from(self) -> Tensor:
        """The stem, once there is one."""
        return self.centers[:0] if self.stem is None else self.stem[None]


def clustered(state: Hierarchy, reply: Fitted, labels: Tensor, weights: Tensor) -> Hierarchy:
    """Put the clients that trained from the shared model into these clusters, whose models are their means."""
    stem = state.centers[0]
    means = mean_by(labels, reply, weights, empty=stem.repeat(int(labels.max()) + 1, 1))
    members = state.labels.put(reply.ids, labels)
    return Hierarchy(means, members, state.features, stem, state.represent(means - stem))


def joined_by_update(state: Hierarchy, ids: Tensor, metric: Metric, local: Local, ask: Ask) -> Hierarchy:
    """New clients train from where the others were clustered and join the nearest mean update."""
    unmet = state.unmet(ids)
    if state.stem is None or state.updates is None or not len(unmet):
        return state
    reply = ask(Fit(All(state.stem), local=local, keep=False, on=unmet))
    update = state.represent(reply.models - state.stem)
    if metric == "cosine":
        return by_angle(state, reply.ids, update, state.updates, ask)
    far = torch.cdist(update.double(), state.updates.double(), p=1 if metric == "manhattan" else 2)
    return assigned(state, reply.ids, far.argmin(1))
