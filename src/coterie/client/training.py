"""Local training of one client, the reference implementation: all that methods may vary is a parameter.

A step descends  mean_b w_b * loss(f(theta, x_b) + offset_b, y_b) + mu/2 |theta - anchor|^2; how the gradient changes
the model is `updates.UpdateRule`, which `batched.mlp` uses too. The batches are drawn from the (seed, round, task,
client) generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from coterie.client.updates import Proximal, UpdateRule, initial_state
from coterie.core.local import Local
from coterie.core.model import Replica, channels_last
from coterie.core.objective import sample_losses


def cuts(n: int, local: Local, least: int = 1) -> list[tuple[int, int]]:
    """Where an epoch's order is cut into batches. A remainder below `least` joins the batch before it."""
    size = n if local.batch == "full" else min(local.batch, n)
    ends = [*range(size, n, size), n]
    if len(ends) > 1 and ends[-1] - ends[-2] < least:
        del ends[-2]
    return list(pairwise([0, *ends]))


def orders(n: int, local: Local, rng: np.random.Generator) -> Iterator[NDArray[np.int64] | None]:
    """The order of the samples in each epoch, None for unshuffled: `epochs` of them, or endlessly where steps count."""
    # The gradient of a full batch does not depend on its order, so none is drawn.
    drawn = local.shuffle and local.batch != "full" and local.batch < n
    for _ in range(local.epochs or 1) if local.steps is None else count():
        yield rng.permutation(n) if drawn else None


def batches(n: int, local: Local, rng: np.random.Generator, least: int = 1) -> Iterator[Tensor | None]:
    """Which samples each step takes; None is all of them, unshuffled."""
    parts = cuts(n, local, least)

    def endless() -> Iterator[Tensor | None]:
        for order in orders(n, local, rng):
            drawn = None if order is None else torch.from_numpy(order)
            for start, end in parts:
                if drawn is None:
                    yield None if end - start == n else torch.arange(start, end)
                else:
                    yield drawn[start:end]

    return islice(endless(), local.steps)


def on_device(takes: Iterator[Tensor | None], device: torch.device) -> Iterator[Tensor | None]:
    """The same steps with their samples' numbers on a device; they go there in one copy."""
    if device.type == "cpu":
        return takes
    plan = list(takes)
    drawn = [take for take in plan if take is not None]
    there = iter(torch.cat(drawn).to(device).split([len(take) for take in drawn])) if drawn else iter(())
    return iter([None if take is None else next(there) for take in plan])


@dataclass(frozen=True, eq=False)
class LocalTraining:
    """One client's training: everything it needs."""

    start: Tensor
    x: Tensor
    y: Tensor
    local: Local
    rng: np.random.Generator
    lr: float
    proximal: Proximal | None
    offset: Tensor | None
    weights: Tensor | None
    state: Tensor | None
    clip: float | None = None  # the largest norm of a gradient
    only: Tensor | None = None  # which entries of the vector (P,) are trained; None: all

    @property
    def span(self) -> slice | None:
        """What is trained, if that is one piece of the vector."""
        if self.only is None:
            return slice(0, len(self.start))
        rows = self.only.nonzero()[:, 0].tolist()
        whole = rows and rows[-1] - rows[0] + 1 == len(rows)
        return slice(rows[0], rows[-1] + 1) if whole else None

    @property
    def rule(self) -> UpdateRule:
        """How a gradient changes the model."""
        return UpdateRule(self.local, self.lr, self.clip)


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """The trained model, the mean loss of its steps, the optimiser's state."""

    theta: Tensor
    loss: float
    state: Tensor


def train(
    replica: Replica,
    x: Tensor,
    y: Tensor,
    local: Local,
    rng: np.random.Generator,
    *,
    lr: float | None = None,
    proximal: Proximal | None = None,
    offset: Tensor | None = None,
    weights: Tensor | None = None,
    state: Tensor | None = None,
    clip: float | None = None,
    only: Tensor | None = None,
) -> tuple[float, Tensor]:
    """Train the replica in place; returns the mean loss of the steps and the optimiser's state.

    only: which entries of the vector are trained. To the optimiser the others do not exist: its state, a gradient's
    norm, the proximal term and the weight decay are of these alone.
    """
    rule, size = UpdateRule(local, local.rate if lr is None else lr, clip), len(replica.weights)
    rows = None if only is None else only[:size].nonzero()[:, 0]
    state = initial_state(local, replica.weights if rows is None else replica.weights[rows], state).clone()
    if proximal is not None:
        proximal = Proximal(proximal.anchor[:size] if rows is None else proximal.anchor[rows], proximal.mu)
    x = channels_last(x)
    least = replica.least_batch(x)
    replica.training(only)
    losses = []
    scale = LossScale() if replica.needs_scaling else None
    for take in on_device(batches(len(y), local, rng, least), replica.device):
        xb, yb, ob, wb = (t if t is None or take is None else t[take] for t in (x, y, offset, weights))
        assert xb is not None
        assert yb is not None
        logits = replica.outputs(xb)
        loss = _objective(logits if ob is None else logits + ob, yb, wb, replica)
        losses.append(loss.detach())
        gradient = replica.gradient(loss) if scale is None else scale.gradient(replica, loss)
        if gradient is None:
            continue
        with torch.no_grad():
            if rule.plain and proximal is None and rows is None:
                torch._foreach_add_(replica.values, gradient, alpha=-rule.lr)  # the same step without copying
                continue
            torch._foreach_copy_(replica.slopes, gradient)
            if rows is None:
                rule.step(replica.weights, replica.grad, state, proximal)
            else:
                moved = replica.weights[rows]
                rule.step(moved, replica.grad[rows], state, proximal)
                replica.weights[rows] = moved
    return float(torch.stack(losses).mean()), state


class LossScale:
    """Keeps small gradients of half precision from vanishing: the loss is scaled up, its gradient down again.

    Where the scaled gradient overflows, the step is left out and the scale halved.
    """

    def __init__(self) -> None:
        self.scale = 2.0**16

    def gradient(self, replica: Replica, loss: Tensor) -> list[Tensor] | None:
        """The gradient, parameter by parameter; None if this step is left out."""
        found = replica.gradient(loss * self.scale)
        torch._foreach_div_(found, self.scale)
        finite = torch.stack([part.isfinite().all() for part in found]).all()
        if self.scale > 1 and not bool(finite):  # at 1 it is the training that diverges
            self.scale /= 2
            return None
        return found


def _objective(logits: Tensor, y: Tensor, weights: Tensor | None, replica: Replica) -> Tensor:
    if weights is not None:
        return (sample_losses(logits, y, replica.loss) * weights).mean()
    if replica.loss == "cross_entropy":
        return functional.cross_entropy(logits, y)
    return sample_losses(logits, y, replica.loss).mean()
