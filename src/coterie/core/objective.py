"""Losses and scores beyond classes and squared errors: two functions of a network's outputs and the labels.

Both give one number per sample, so that every engine may compute them for one client or for many end to end, methods
may compare models by them, and the mean over a client's samples is the client's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from coterie.core.errors import CoterieError
from coterie.core.registry import LOSSES, NO_CODE, Consent
from coterie.core.settings import STRICT, ShareBelowOne, dataclass


@runtime_checkable
class Objective(Protocol):
    """What a network is trained with and scored by."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample (n,), which training minimises the mean of. Lower is better."""

    def scores(self, outputs: Tensor, y: Tensor) -> Mapping[str, Tensor]:
        """Named scores of every sample (n,) each, for reports; where targets are standardised, in their own units."""


Loss: TypeAlias = Literal["cross_entropy", "mse"]
AnyLoss: TypeAlias = Loss | Objective
LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # outputs, labels -> (n,)


@dataclass(frozen=True, config=STRICT)
class MultiLabel:
    """Several labels at once, each 0 or 1 (n, labels): binary cross-entropy."""

    threshold: ShareBelowOne = 0.5  # the probability from which on a label is predicted

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean over a sample's labels."""
        return functional.binary_cross_entropy_with_logits(outputs, y.to(outputs), reduction="none").mean(1)

    def scores(self, outputs: Tensor, y: Tensor) -> Mapping[str, Tensor]:
        """label_accuracy: the share of a sample's labels that are right. all_right: 1 where all of them are."""
        right = (outputs.sigmoid() > self.threshold) == (y > 0.5)
        return {"label_accuracy": right.double().mean(1), "all_right": right.all(1).double()}


@dataclass(frozen=True, config=STRICT)
class AbsoluteError:
    """The mean absolute error, for targets with outliers and forecasts; scores: mae and, to take the root of, mse."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean over a sample's targets, such as the hours of a forecast."""
        return (outputs.reshape(len(y), -1) - y.reshape(len(y), -1)).abs().mean(1)

    def scores(self, outputs: Tensor, y: Tensor) -> Mapping[str, Tensor]:
        """Both errors of every sample."""
        off = outputs.reshape(len(y), -1) - y.reshape(len(y), -1)
        return {"mae": off.abs().mean(1), "mse": off.square().mean(1)}


@dataclass(frozen=True, config=STRICT)
class Tokens:
    """A class for every position of a sequence: outputs (n, positions, classes), labels (n, positions)."""

    padding: int = -100  # the label of positions that do not count

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean over the positions that count."""
        wanted = y.long()
        found = functional.cross_entropy(
            outputs.flatten(0, 1), wanted.flatten(), ignore_index=self.padding, reduction="none"
        )
        return found.view(wanted.shape).sum(1) / self._counted(wanted)

    def scores(self, outputs: Tensor, y: Tensor) -> Mapping[str, Tensor]:
        """token_accuracy: the share of a sample's positions that are right."""
        wanted = y.long()
        right = (outputs.argmax(2) == wanted) & (wanted != self.padding)
        return {"token_accuracy": right.sum(1) / self._counted(wanted)}

    def _counted(self, wanted: Tensor) -> Tensor:
        return (wanted != self.padding).sum(1).clamp(min=1)


@dataclass(frozen=True, config=STRICT | {"arbitrary_types_allowed": True})
class ByFunction:
    """An objective of a loss function alone: it has no scores besides."""

    function: Callable[..., Any]

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """What the function says."""
        found: Tensor = self.function(outputs, y)
        return found

    def scores(self, outputs: Tensor, y: Tensor) -> Mapping[str, Tensor]:
        """None."""
        return {}


def as_loss(loss: str | Objective | LossFunction, consent: Consent = NO_CODE) -> AnyLoss:
    """A loss, from its name, an objective, or a function of outputs and labels that gives a loss per sample."""
    if loss in ("cross_entropy", "mse"):
        return loss  # type: ignore[return-value]
    made: Any = LOSSES.find(loss, consent) if isinstance(loss, str) else loss  # module:function is the loss itself
    made = made() if isinstance(made, type) else made
    if isinstance(made, Objective):
        return made
    if callable(made):
        return ByFunction(made)
    raise CoterieError(
        f"loss: {loss!r}: expected a name, a function (outputs, y) -> losses (n,), or an object with losses and scores",
        code="component-invalid",
    )


def loss_name(loss: AnyLoss) -> str:
    """How a loss is called in files and messages: parameters included."""
    if isinstance(loss, str):
        return loss
    if isinstance(loss, ByFunction):
        return str(getattr(loss.function, "__qualname__", type(loss.function).__qualname__))
    return repr(loss) if type(loss).__module__ == __name__ else type(loss).__qualname__


def sample_losses(logits: Tensor, y: Tensor, loss: AnyLoss) -> Tensor:
    """The loss of every sample (n,)."""
    if loss == "cross_entropy":
        return functional.cross_entropy(logits, y, reduction="none")
    if loss == "mse":
        return (logits.reshape(len(y), -1) - y.reshape(len(y), -1)).square().mean(1)
    assert not isinstance(loss, str)
    return per_sample(loss.losses(logits, y), len(y), "losses")


def sample_scores(logits: Tensor, y: Tensor, objective: Objective) -> dict[str, Tensor]:
    """Every named score of every sample (n,)."""
    found = dict(objective.scores(logits, y))
    for name, values in found.items():
        if not name.isidentifier():
            raise CoterieError(
                f"loss: a score's name must be a word such as label_accuracy, not {name!r}", code=INVALID
            )
        per_sample(values, len(y), f"scores: {name}")
    return found


INVALID = "component-invalid"


def per_sample(values: object, n: int, what: str) -> Tensor:
    """Values as given, if there is one per sample."""
    if not isinstance(values, Tensor) or values.shape != (n,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise CoterieError(
            f"loss: {what} must be a tensor with one number per sample ({n},), got {got}; "
            "for a torch loss write reduction='none' and take the mean over the other axes",
            code=INVALID,
        )
    return values


def check_objective(objective: Objective, outputs: Tensor, y: Tensor) -> None:
    """Call both functions once, so that a mistake is reported before anything starts."""
    many, wanted = outputs[0].numel(), y[0].numel()
    if isinstance(objective, AbsoluteError | MultiLabel) and many != wanted:  # torch would repeat the smaller one
        raise CoterieError(
            f"loss: {loss_name(objective)} compares outputs with as many numbers per sample; the network has {many} "
            f"outputs, the data {wanted}",
            code="model-shape",
        )
    try:
        with torch.enable_grad():
            losses = sample_losses(outputs.detach().clone().requires_grad_(), y, objective)
        sample_scores(outputs, y, objective)
    except CoterieError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise CoterieError(
            f"loss: fails for outputs of shape {tuple(outputs.shape)} and labels of shape {tuple(y.shape)}: "
            f"{type(error).__name__}: {' '.join(str(error).split())}",
            code="component-failed",
        ) from None
    if not losses.requires_grad:
        raise CoterieError("loss: losses do not depend on the network's outputs: no gradient", code=INVALID)
