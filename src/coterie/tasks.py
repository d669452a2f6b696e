"""What a server may ask of clients, and what they answer: frozen dataclasses, no computation.

A *reference* says which vector a client should use; a *task* says what to do with it; a *reply* is
what came back, with the ids of those who answered. Tasks carry tensors and numbers, never code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass as validated
from torch import Tensor

from coterie.byclient import ByClient
from coterie.domains import STRICT, ShareAboveZero, ShareBelowOne
from coterie.errors import CoterieError


@validated(frozen=True, config=STRICT)
class Local:
    """How a client trains: for how long, on which batches, with which optimiser.

    epochs: passes over the client's data (one, if neither is given); or steps: a number of batches.
    batch: samples per step, or "full". lr, momentum, weight_decay, optimizer ("sgd" or "adam"): as in torch.optim.
    lr_decay: the learning rate of round t, from 0, is lr * lr_decay**t. shuffle: whether batches are drawn anew.
    keep_optimizer: momentum (or Adam's moments) live on at the client from visit to visit.
    """

    epochs: PositiveInt | None = None  # passes over the client's data; 1 when steps is not given either
    steps: PositiveInt | None = None  # or a number of batches, going round the data as often as needed
    batch: PositiveInt | Literal["full"] = 32  # samples per step; "full" is gradient descent
    lr: PositiveFloat = 0.1
    lr_decay: ShareAboveZero = 1.0  # learning rate of round t (from 0) is lr * lr_decay**t
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: ShareBelowOne = 0.0
    weight_decay: NonNegativeFloat = 0.0
    keep_optimizer: bool = False  # momentum (or Adam's moments) live on at the client from visit to visit
    shuffle: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> Local:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd; adam has its own (leave momentum at 0)")
        return self


# ---------------------------------------------------------------------------------------- references


@dataclass(frozen=True, eq=False)
class All:
    """The same vector for everyone."""

    theta: Tensor  # (P,)


@dataclass(frozen=True, eq=False)
class Pick:
    """The row that the server chose for each client."""

    centers: Tensor  # (K, P)
    labels: ByClient  # int


@dataclass(frozen=True, eq=False)
class Row:
    """One vector, and which row of the server's it is: a `Pick` as one client is sent it over a network."""

    theta: Tensor  # (P,)
    row: int


@dataclass(frozen=True, eq=False)
class Best:
    """The row of least mean loss (or most correct answers) on the client's own training data; the lowest index
    wins a tie."""

    centers: Tensor  # (K, P)
    given: Ref | None = None  # logits of this model are added to each row's own while scoring
    by: Literal["loss", "accuracy"] = "loss"


@dataclass(frozen=True, eq=False)
class Estimated:
    """Mixture weights (K,) that the client estimates on its own training data.

    votes: the share of samples on which each center is the best. posterior: expectation-maximisation of the
    weights alone, from uniform ones, with the centers as they are.
    """

    centers: Tensor  # (K, P)
    rule: Literal["votes", "posterior"]
    steps: int = 10  # of expectation-maximisation


@dataclass(frozen=True, eq=False)
class Mix:
    """A combination of the rows, with weights per client: the server's, or the client's own estimate."""

    centers: Tensor  # (K, P)
    weights: ByClient | Estimated  # (n, K)


@dataclass(frozen=True, eq=False)
class Own:
    """What the client itself keeps under this name, or the default on its first visit."""

    slot: str
    default: Ref


Ref: TypeAlias = All | Pick | Row | Best | Mix | Own | Estimated


@dataclass(frozen=True, eq=False)
class Posterior:
    """Weights per sample, computed at the client: p(component | sample) under the prior (FedEM's E-step)."""

    centers: Tensor  # (K, P)
    component: int
    prior: Ref  # a (K,) vector


# --------------------------------------------------------------------------------------------- tasks


@dataclass(frozen=True, eq=False)
class Fit:
    """Train from `start`: mean loss + mu/2 |theta - anchor|^2, with frozen logits and sample weights if given."""

    start: Ref
    local: Local
    anchor: Ref | None = None
    mu: float | ByClient = 0.0
    offset: Ref | None = None  # a frozen model whose logits are added to the trained model's own
    weights: Posterior | None = None
    save: str | None = None  # keep the result at the client under this name
    send: bool = True  # whether the result is sent to the server
    optimizer_slot: str = "optimizer"  # where a kept optimiser state lives
    on: Tensor | None = None  # ids; None is the whole cohort


@dataclass(frozen=True, eq=False)
class Score:
    """How well each center fits the client's training data, a row of K numbers per client.

    loss: mean loss. votes: share of samples on which the center is the best (lowest index wins a tie).
    posterior: mean p(center | sample) under the prior.
    """

    centers: Tensor  # (K, P)
    rule: Literal["loss", "votes", "posterior"] = "loss"
    given: Ref | None = None
    prior: Ref | None = None  # a (K,) vector; uniform when None
    save: str | None = None  # keep the row at the client under this name
    on: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Evaluate:
    """Predict with the sum (or average) of the models' logits or, given mixture weights, the mixture of their
    probabilities."""

    models: tuple[Ref, ...]
    mixture: Ref | None = None  # a (len(models),) vector
    average: bool = False  # of the logits, instead of their sum
    belongs: Ref | None = None  # a (K,) vector that is reported as the client's share in each cluster
    split: Literal["train", "test"] = "test"
    on: Tensor | None = None


Task: TypeAlias = Fit | Score | Evaluate

# ------------------------------------------------------------------------------------------- replies


class Elsewhere(Protocol):
    """Models (n, P) that still lie where they were trained: a mean of them need not bring them here."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def combined(self, share: Tensor) -> Tensor:
        """share (K, n) @ models, computed where they lie."""

    def gathered(self) -> Tensor:
        """All of them, brought here (once)."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """Answers to a `Fit`, one row per client that answered, by ascending id."""

    ids: Tensor  # (n,)
    n: Tensor  # (n,) training samples
    loss: Tensor  # (n,) mean training loss over the visit's steps
    sent: Tensor | Elsewhere | None = None  # (n, P); for a mean of them pass the reply itself to `mean` or `mean_by`
    choice: Tensor | None = None  # (n,) which row a Pick or Best start was

    @property
    def theta(self) -> Tensor | None:
        """The trained models (n, P), brought here if they lie elsewhere; None where none were sent."""
        return self.sent if self.sent is None or isinstance(self.sent, Tensor) else self.sent.gathered()

    @property
    def models(self) -> Tensor:
        """The trained models (n, P)."""
        theta = self.theta
        if theta is None:
            raise CoterieError("this Fit had send=False, its models stay with the clients")
        return theta

    @property
    def chosen(self) -> Tensor:
        """The rows the clients started from (n,)."""
        if self.choice is None:
            raise CoterieError("this Fit started from neither Pick nor Best, there was nothing to choose")
        return self.choice


@dataclass(frozen=True, eq=False)
class Scored:
    """Answers to a `Score`."""

    ids: Tensor
    n: Tensor
    scores: Tensor  # (n, K)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Answers to an `Evaluate`; accuracy and macro-F1 are NaN for regression, whose loss is the squared error."""

    ids: Tensor
    n: Tensor  # samples of the evaluated split
    loss: Tensor
    accuracy: Tensor
    macro_f1: Tensor
    choice: Tensor | None = None  # (n,) the cluster a client used, or the one it has the largest share in
    shares: Tensor | None = None  # (n, K) of soft methods: how much of each cluster a client is

    def __repr__(self) -> str:
        return f"<{len(self.ids)} clients evaluated: .ids, .n, .loss, .accuracy, .macro_f1, .choice, .shares>"


Reply: TypeAlias = Fitted | Scored | Evaluated


# ------------------------------------------------------------------------------ who is there to be asked


@dataclass(frozen=True, eq=False)
class Roster:
    """Everyone the server knows: client ids, ascending, and the size of their training data."""

    ids: Tensor
    n: Tensor


@dataclass(frozen=True, eq=False)
class Cohort:
    """Those taking part in a round, and the method's own random stream for it."""

    ids: Tensor
    round: int  # from 0
    roster: Roster
    rng: np.random.Generator = field(repr=False)
