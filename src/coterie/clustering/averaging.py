"""Averages of flat models, written once. A cluster without any answer keeps its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from coterie.core.aggregation import Aggregator, takes
from coterie.core.tasks import Fitted

Weighting: TypeAlias = Literal["size", "equal"]


def weigh(reply: Fitted, how: Weighting) -> Tensor:
    """A weight per client that answered: its number of training samples, or one."""
    return reply.n.double() if how == "size" else torch.ones(len(reply.n), dtype=torch.float64)


def mean(models: Fitted | Tensor | None, weights: Tensor, empty: Tensor) -> Tensor:
    """The weighted mean (P,) of models (n, P), or of a reply's; `empty` when there are none."""
    theta = models.sent if isinstance(models, Fitted) else models
    if theta is None:
        return empty
    return mean_by(torch.zeros(len(theta), dtype=torch.int64), models, weights, empty[None])[0]


def as_measured(reply: Fitted) -> Fitted:
    """A reply whose means are those of its models, where a server optimizer would step from them: for what clusters
    are compared by. The reply itself where there is none."""
    aggregator: object = reply.aggregator
    return replace(reply, aggregator=aggregator.measured) if isinstance(aggregator, Steps) else reply


@runtime_checkable
class Steps(Protocol):
    """An aggregator that steps from a mean; `measured` takes that mean, None where it is plain."""

    measured: Aggregator | None


def mean_of_chain(links: Sequence[Fitted], empty: Tensor) -> Tensor:
    """The mean (P,) of the models of clients of which each continued from the one before, the first from `empty`."""
    ids, n, loss = (torch.cat([getattr(one, name) for one in links]) for name in ("ids", "n", "loss"))
    models = torch.cat([one.models.double() for one in links])
    order = ids.argsort()
    whole = replace(links[0], ids=ids[order], n=n[order], loss=loss[order], sent=models[order])
    return mean(whole, torch.ones(len(ids), dtype=torch.float64), empty).to(empty.dtype)


def mean_by(labels: Tensor, models: Fitted | Tensor | None, weights: Tensor, empty: Tensor) -> Tensor:
    """The weighted mean of each cluster's models (K, P); a cluster without members keeps its row of `empty`.

    Given the reply itself, the mean is computed where its models are stored, or by the reply's aggregator.
    """
    theta = models.sent if isinstance(models, Fitted) else models
    if theta is None:
        return empty
    if isinstance(models, Fitted) and models.aggregator is not None and takes(models.aggregator, len(theta)):
        return models.aggregator(labels, models, weights, empty)
    if not len(theta):
        return empty
    share = torch.zeros(len(empty), len(theta), dtype=torch.float64)
    share[labels, torch.arange(len(theta))] = weights.double()
    total = share.sum(1, keepdim=True)
    share = (share / total.clamp(min=torch.finfo(torch.float64).tiny)).to(theta.dtype)
    means = share @ theta if isinstance(theta, Tensor) else theta.combined(share)
    return torch.where(total.to(torch.float64) > 0, means, empty)
