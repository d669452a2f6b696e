"""How far apart the clients of a round are: two measures of heterogeneity from the papers.

Both are computed on the server after a round, from what clients sent, what they started from, and the models they get
next. They are not available for methods whose models stay with the clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.tasks import All, Evaluate, Fit, Fitted, OneRow, rows_of, vectors_of


@dataclass(frozen=True)
class Diagnosis:
    """discrepancy: the mean distance between a client's model and the one it is given next (FedGroup, Eq. 4).

    clusterability: the largest |mean g - g_i| / |mean g| over clients i, where g_i is the client's update and the mean
    is its cluster's (B in WeCFL, Definition 6.4: norms, not squared); the smaller, the more similar its clients are.
    """

    discrepancy: float | None = None
    clusterability: float | None = None


def diagnose(fits: Sequence[tuple[Fit, Fitted]], after: Evaluate) -> Diagnosis:
    """Measure the last training of a round; after: how clients predict after the round."""
    last = training(fits)
    if last is None:
        return Diagnosis()
    task, reply = last
    start, end = rows_of(task.start, reply.ids, reply.choice), _given(after, reply, reply.choice is not None)
    return Diagnosis(
        None if end is None else _discrepancy(reply.models, *end),
        None if start is None or end is None else _clusterability(reply, start, end[1]),
    )


def training(fits: Sequence[tuple[Fit, Fitted]]) -> tuple[Fit, Fitted] | None:
    """The main training of the last visit: that of cluster models, if there is one."""
    sent = [(task, reply) for task, reply in fits if reply.sent is not None and len(reply.ids)]
    clustered = [(task, reply) for task, reply in sent if reply.choice is not None]
    return next(iter(clustered or sent), None)


def models_of(after: Evaluate) -> Tensor | None:
    """The models (K, P) that clients are given, where the server has them."""
    for ref in after.models:
        if isinstance(ref, OneRow):
            return vectors_of(ref)
    shared = [ref.theta for ref in after.models if isinstance(ref, All)]
    return torch.stack(shared) if shared else None


def _given(after: Evaluate, reply: Fitted, clustered: bool) -> tuple[Tensor, Tensor] | None:
    kinds = OneRow if clustered else All | OneRow
    found = next((ref for ref in after.models if isinstance(ref, kinds)), None)
    return None if found is None else rows_of(found, reply.ids, reply.choice)


def _discrepancy(models: Tensor, centers: Tensor, labels: Tensor) -> float:
    # Client by client: the differences of all at once would need as much memory as the models.
    apart = [torch.dist(model, centers[k]) for model, k in zip(models, labels.tolist(), strict=True)]
    return float(torch.stack(apart).mean())


def _clusterability(reply: Fitted, start: tuple[Tensor, Tensor], labels: Tensor) -> float | None:
    begin, row = start
    weights, worst = reply.n.to(reply.models.dtype), 0.0
    for k in labels.unique():
        mine = torch.nonzero(labels == k)[:, 0]
        # Weight zero for the others: selecting this cluster's models would copy them.
        share = torch.where(labels == k, weights, 0.0) / weights[mine].sum()
        mean = share @ reply.models - share.new_zeros(len(begin)).index_add_(0, row, share) @ begin
        length = float(mean.norm())
        if not length:
            return None
        for i in mine.tolist():
            apart = float((reply.models[i] - begin[row[i]] - mean).norm())
            worst = max(worst, apart / length)
    return worst
