"""THE local training step, written once: everything a method may want of it is a parameter.

A step descends  mean_b w_b * loss(f(theta, x_b) + offset_b, y_b) + mu/2 |theta - anchor|^2.
The batches are a plan, drawn from the (seed, round, task, client) generator before training starts.
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

from coterie.errors import CoterieError
from coterie.layout import channels_last
from coterie.model import Replica, sample_losses
from coterie.tasks import Local


def cuts(n: int, local: Local, least: int = 1) -> list[tuple[int, int]]:
    """Where an epoch's order is cut into batches. A rest below `least` joins the batch before it."""
    size = n if local.batch == "full" else min(local.batch, n)
    ends = [*range(size, n, size), n]
    if len(ends) > 1 and ends[-1] - ends[-2] < least:
        del ends[-2]
    return list(pairwise([0, *ends]))


def orders(n: int, local: Local, rng: np.random.Generator) -> Iterator[NDArray[np.int64] | None]:
    """The order of the samples in each epoch; None is their own. As many epochs as asked for, or without an end."""
    # The gradient of a full batch does not depend on its order, so none is drawn.
    drawn = local.shuffle and local.batch != "full" and local.batch < n
    for _ in range(local.epochs or 1) if local.steps is None else count():
        yield rng.permutation(n) if drawn else None


def batches(n: int, local: Local, rng: np.random.Generator, least: int = 1) -> Iterator[Tensor | None]:
    """Which samples each step takes; None is all of them in their own order."""
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


@dataclass(frozen=True, eq=False)
class Proximal:
    """mu/2 |theta - anchor|^2 over the trainable parameters (running statistics are not pulled).

    The pull is part of the gradient, as the papers write it. Where lr * mu > 1 such a step would overshoot
    the anchor and diverge, so the pull is applied implicitly: argmin of 1/(2 lr)|z - theta|^2 + mu/2|z - anchor|^2.
    """

    anchor: Tensor
    mu: float


@dataclass(frozen=True, eq=False)
class Work:
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


@dataclass(frozen=True, eq=False)
class Trained:
    """What came of it: the model, the mean loss of its steps, the optimiser's state."""

    theta: Tensor
    loss: float
    state: Tensor


def plain_sgd(local: Local) -> bool:
    """Whether a step goes along the gradient and nowhere else."""
    return local.optimizer == "sgd" and not local.momentum and not local.weight_decay


class Optimizer:
    """SGD (with momentum) or Adam on one flat vector; its state is one tensor, so that a client can keep it."""

    def __init__(self, local: Local, lr: float, like: Tensor, state: Tensor | None) -> None:
        self.local, self.lr = local, lr
        length = {"sgd": len(like) if local.momentum else 0, "adam": 2 * len(like) + 1}[local.optimizer]
        if state is not None and state.shape != (length,):
            raise CoterieError(
                f"a kept optimiser state of {state.numel()} numbers does not fit one of {length}: "
                "the optimiser or the model has changed since it was kept"
            )
        self.state = like.new_zeros(length) if state is None else state.clone()
        self.plain = plain_sgd(local)
        self._scratch = torch.empty_like(like)

    def step(self, theta: Tensor, grad: Tensor) -> None:
        """Move theta in place."""
        if self.local.weight_decay:
            grad.add_(theta, alpha=self.local.weight_decay)
        if self.local.optimizer == "adam":
            self._adam(theta, grad)
        elif self.local.momentum:
            self.state.mul_(self.local.momentum).add_(grad)
            theta.add_(self.state, alpha=-self.lr)
        else:
            theta.add_(grad, alpha=-self.lr)

    def _adam(self, theta: Tensor, grad: Tensor, beta1: float = 0.9, beta2: float = 0.999) -> None:
        p = len(theta)
        first, second = self.state[:p], self.state[p : 2 * p]
        self.state[2 * p] += 1
        t = float(self.state[2 * p])
        first.lerp_(grad, 1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        torch.sqrt(second, out=self._scratch).div_((1 - beta2**t) ** 0.5).add_(1e-8)
        theta.addcdiv_(first, self._scratch, value=-self.lr / (1 - beta1**t))


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
) -> tuple[float, Tensor]:
    """Train the replica in place; returns the mean loss of the steps and the optimiser's state."""
    lr = local.lr if lr is None else lr
    optimizer = Optimizer(local, lr, replica.weights, state)
    anchor, pull = (None, 0.0) if proximal is None else (proximal.anchor[: len(replica.weights)], proximal.mu)
    replica.network.train()
    x = channels_last(x)
    losses = []
    for take in batches(len(y), local, rng, replica.least):
        xb, yb, ob, wb = (t if t is None or take is None else t[take] for t in (x, y, offset, weights))
        assert xb is not None
        assert yb is not None
        logits = replica.network(xb)
        loss = _objective(logits if ob is None else logits + ob, yb, wb, replica)
        slopes = replica.gradient(loss)
        losses.append(loss.detach())
        with torch.no_grad():
            if optimizer.plain and anchor is None:
                torch._foreach_add_(replica.values, slopes, alpha=-lr)  # one pass over memory, none in between
                continue
            torch._foreach_copy_(replica.slopes, slopes)
            if anchor is not None and lr * pull <= 1:
                replica.grad.add_(replica.weights - anchor, alpha=pull)
            optimizer.step(replica.weights, replica.grad)
            if anchor is not None and lr * pull > 1:
                replica.weights.lerp_(anchor, lr * pull / (1 + lr * pull))
    return float(torch.stack(losses).mean()), optimizer.state


def _objective(logits: Tensor, y: Tensor, weights: Tensor | None, replica: Replica) -> Tensor:
    if weights is not None:
        return (sample_losses(logits, y, replica.loss) * weights).mean()
    if replica.loss == "cross_entropy":
        return functional.cross_entropy(logits, y)
    return sample_losses(logits, y, replica.loss).mean()
