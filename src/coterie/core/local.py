"""How a client trains: the settings of local training."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, field_validator, model_validator

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, ShareAboveZero, ShareBelowOne
from coterie.core.settings import dataclass as validated


@validated(frozen=True, config=STRICT)
class Local:
    """How a client trains: for how long, on which batches, with which optimiser.

    epochs: passes over the client's data (one, if neither is given); or steps: a number of batches.
    batch: samples per step, or "full". lr, momentum, weight_decay, optimizer ("sgd" or "adam"): as in torch.optim.
    lr may be "auto": a few clients try some rates before the first round (see `training.learning_rate`).
    lr_decay: the learning rate of round t, from 0, is lr * lr_decay**t. shuffle: whether batches are drawn anew.
    keep_optimizer: momentum (or Adam's moments) live on at the client from visit to visit.
    clip: the largest norm of a step's gradient, above which it is scaled down; "off" never clips. "auto" is 1 where
    targets are standardised (regression on a table), and off elsewhere.
    """

    epochs: PositiveInt | None = None  # passes over the client's data; 1 when steps is not given either
    steps: PositiveInt | None = None  # or a number of batches, going round the data as often as needed
    batch: PositiveInt | Literal["full"] = 32  # samples per step; "full" is gradient descent
    lr: PositiveFloat | Literal["auto"] = 0.1  # auto: found by a short search before the first round
    lr_decay: ShareAboveZero = 1.0  # learning rate of round t (from 0) is lr * lr_decay**t
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: ShareBelowOne = 0.0
    weight_decay: NonNegativeFloat = 0.0
    keep_optimizer: bool = False  # momentum (or Adam's moments) live on at the client from visit to visit
    shuffle: bool = True
    clip: PositiveFloat | Literal["auto", "off"] = "auto"  # gradient norm; auto: 1 where targets are standardised

    @field_validator("clip", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        if value is True:
            raise ValueError("the largest norm of a gradient, such as 1, or auto, or off")
        return "off" if value is False else value  # as YAML reads `off`

    @property
    def rate(self) -> float:
        """The learning rate, which must be a number by now."""
        if self.lr == "auto":
            raise CoterieError(
                "local.lr: auto is found when a run begins (coterie.run, coterie run); here write a number",
                code="argument-invalid",
            )
        return self.lr

    def __repr__(self) -> str:
        """As a dataclass, without what has its default and came later: checkpoints of before know it by this."""
        shown = (f.name for f in fields(self) if f.name != "clip" or self.clip != "auto")
        return f"Local({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @model_validator(mode="after")
    def _consistent(self) -> Local:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd; adam has its own (leave momentum at 0)")
        return self


GRADIENT = Local(epochs=1, batch="full", lr=1.0, clip="off")  # one step of it moves a model by minus its gradient
