"""Replies: what clients answered to a task, with the ids of those who did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from coterie.core.aggregation import Aggregator
from coterie.core.constructors import explained
from coterie.core.errors import CoterieError
from coterie.core.references import Ref


class RemoteModels(Protocol):
    """Models (n, P) that are still stored where they were trained: their mean can be computed there."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def combined(self, share: Tensor) -> Tensor:
        """share (K, n) @ models, computed where they are stored."""

    def gathered(self) -> Tensor:
        """All of them, brought here (once)."""

    def norms(self, choice: Tensor | None) -> Tensor:
        """The norm of each update (n,), computed where the models are stored (see `screening.norms_of`)."""


@explained
@dataclass(frozen=True, eq=False)
class Fitted:
    """Answers to a `Fit`, one row per client that answered, by ascending id."""

    ids: Tensor  # (n,)
    n: Tensor  # (n,) training samples
    loss: Tensor  # (n,) mean training loss over the visit's steps
    sent: Tensor | RemoteModels | None = None  # (n, P); for a mean of them pass the reply itself to `mean` or `mean_by`
    choice: Tensor | None = None  # (n,) which row a Pick or Best start was
    sketch: Tensor | None = None  # (n, size) sketches of the updates, where they were asked for
    aggregator: Aggregator | None = None  # takes the place of a mean of the models
    start: Ref | None = None  # what the clients trained from; given with the aggregator

    @property
    def theta(self) -> Tensor | None:
        """The trained models (n, P), fetched if they are stored elsewhere; None if none were sent."""
        return self.sent if self.sent is None or isinstance(self.sent, Tensor) else self.sent.gathered()

    @property
    def models(self) -> Tensor:
        """The trained models (n, P)."""
        theta = self.theta
        if theta is None:
            raise CoterieError("this Fit had send=False, its models stay with the clients", code="reply-not-asked")
        return theta

    @property
    def sketches(self) -> Tensor:
        """The sketches (n, size) that were asked for."""
        if self.sketch is None:
            raise CoterieError("this Fit asked for no sketch; write Fit(sketch=256)", code="reply-not-asked")
        return self.sketch

    @property
    def chosen(self) -> Tensor:
        """The rows the clients started from (n,)."""
        if not len(self.ids):
            return self.ids
        if self.choice is None:
            raise CoterieError(
                "this Fit started from neither Pick nor Best, there was nothing to choose", code="reply-not-asked"
            )
        return self.choice


@explained
@dataclass(frozen=True, eq=False)
class Scored:
    """Answers to a `Score`."""

    ids: Tensor
    n: Tensor
    scores: Tensor  # (n, K)


@explained
@dataclass(frozen=True, eq=False)
class Evaluated:
    """Answers to an `Evaluate`; accuracy and macro-F1 are NaN for regression, whose loss is the mean squared error.

    mae, constant, variance (and rmse, r2, which follow) are of regressions only; see `metrics.Errors`.
    """

    ids: Tensor
    n: Tensor  # samples of the evaluated split
    loss: Tensor
    accuracy: Tensor
    macro_f1: Tensor
    choice: Tensor | None = None  # (n,) the cluster a client used, or the one it has the largest share in
    shares: Tensor | None = None  # (n, K) of soft methods: how much of each cluster a client is
    mae: Tensor | None = None
    constant: Tensor | None = None  # the squared error of saying the mean of the client's training targets
    variance: Tensor | None = None  # of its targets ...
    level: Tensor | None = None  # (n, targets) ... and their mean
    scores: Mapping[str, Tensor] | None = None  # (n,) each: those of an objective of one's own, by name

    @property
    def rmse(self) -> Tensor | None:
        """The root of the mean squared error, in the units of the targets."""
        return None if self.mae is None else self.loss.sqrt()

    @property
    def r2(self) -> Tensor | None:
        """1 - mean squared error / variance of the client's test targets; NaN where these do not vary."""
        if self.variance is None:
            return None
        return torch.where(self.variance > 0, 1 - self.loss / self.variance, torch.nan)

    def __repr__(self) -> str:
        return f"<{len(self.ids)} clients evaluated: .ids, .n, .loss, .accuracy, .macro_f1, .choice, .shares>"


@explained
@dataclass(frozen=True, eq=False)
class Described:
    """Answers to a `Describe`."""

    ids: Tensor
    n: Tensor
    rows: Tensor  # (n, length)


Reply: TypeAlias = Fitted | Scored | Evaluated | Described
