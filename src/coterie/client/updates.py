"""The update rules of local training, written once: SGD, momentum, Adam, weight decay, clipping, the proximal term.

They act in place on vectors (..., P): one client's (P,) in sequential training, or one row per client (G, P) where many
train together. An optimiser's state is one tensor (..., length), so that a client can keep it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.local import Local

BETAS = (0.9, 0.999)  # of Adam, like its epsilon as in torch.optim
EPSILON = 1e-8


@dataclass(frozen=True, eq=False)
class Proximal:
    """mu/2 |theta - anchor|^2 over the trainable parameters (running statistics are not pulled).

    The pull is part of the gradient, as the papers write it, but is not clipped with it: a bound on the loss's gradient
    says nothing about how far a model may be from its anchor. Where lr * mu > 1 such a step would overshoot
    the anchor and diverge, so the pull is applied implicitly: argmin of 1/(2 lr)|z - theta|^2 + mu/2|z - anchor|^2.
    """

    anchor: Tensor  # (P,), or (G, P)
    mu: float | Tensor  # one number, or (G, 1)

    def add_gradient(self, grad: Tensor, theta: Tensor, lr: float) -> None:
        """Add the explicit pull to a gradient."""
        if isinstance(self.mu, Tensor):
            grad.add_((theta - self.anchor) * (self.mu * (lr * self.mu <= 1)))
        elif lr * self.mu <= 1:
            grad.add_(theta - self.anchor, alpha=self.mu)

    def pull(self, theta: Tensor, lr: float) -> None:
        """Apply the implicit pull after a step."""
        if isinstance(self.mu, Tensor):
            explicit = lr * self.mu <= 1
            if not bool(explicit.all()):
                share = torch.where(explicit, torch.zeros_like(self.mu), lr * self.mu / (1 + lr * self.mu))
                theta.lerp_(self.anchor, share.expand_as(theta))
        elif lr * self.mu > 1:
            theta.lerp_(self.anchor, lr * self.mu / (1 + lr * self.mu))


def proximal_factors(lr: float, mu: Tensor) -> tuple[Tensor, Tensor]:
    """What a plain step with a proximal term does, as factors: of theta - anchor, and of the gradient's step."""
    pull = lr * mu
    distance = torch.where(pull <= 1, 1 - pull, 1 / (1 + pull))
    return distance, torch.where(pull <= 1, torch.ones_like(pull), distance)


def clip_rows(grads: Tensor, clip: float) -> None:
    """Scale gradients (..., P) in place so that no norm exceeds `clip`. In double: the squares could overflow."""
    if not grads.shape[-1]:  # everything that could be trained is frozen
        return
    if grads.device.type == "cpu":
        norms = torch.linalg.vector_norm(grads, dim=-1, keepdim=True, dtype=torch.float64)
    else:  # where doubles are slow, or not there: relative to the largest number
        largest = grads.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(grads.dtype).tiny)
        norms = largest * torch.linalg.vector_norm(grads / largest, dim=-1, keepdim=True)
    grads.mul_((clip / norms.clamp(min=clip)).to(grads.dtype))


def initial_state(local: Local, like: Tensor, kept: Tensor | None) -> Tensor:
    """The optimiser's state for a vector like this (P,): the kept one (not copied) if it fits, else zeros."""
    length = {"sgd": len(like) if local.momentum else 0, "adam": 2 * len(like) + 1}[local.optimizer]
    if kept is None:
        return like.new_zeros(length)
    if kept.shape != (length,):
        raise CoterieError(
            f"a kept optimiser state of {kept.numel()} numbers does not fit one of {length}: "
            "the optimiser or the model has changed since it was kept",
            code="checkpoint-mismatch",
        )
    return kept


@dataclass(frozen=True, eq=False)
class UpdateRule:
    """How a gradient changes a model: the optimiser of `local`, a rate, and the bound on the loss's gradient."""

    local: Local
    lr: float
    clip: float | None

    @property
    def plain(self) -> bool:
        """Whether a step is -lr times the gradient and nothing else (a proximal term aside)."""
        local = self.local
        return local.optimizer == "sgd" and not local.momentum and not local.weight_decay and self.clip is None

    def step(self, theta: Tensor, grad: Tensor, state: Tensor, proximal: Proximal | None) -> None:
        """One step on (..., P) in place; `grad` is changed too."""
        if self.clip is not None:
            clip_rows(grad, self.clip)
        if proximal is not None:
            proximal.add_gradient(grad, theta, self.lr)
        if self.local.weight_decay:
            grad.add_(theta, alpha=self.local.weight_decay)
        if self.local.optimizer == "adam":
            _adam(theta, grad, state, self.lr)
        elif self.local.momentum:
            state.mul_(self.local.momentum).add_(grad)
            theta.add_(state, alpha=-self.lr)
        else:
            theta.add_(grad, alpha=-self.lr)
        if proximal is not None:
            proximal.pull(theta, self.lr)


def _adam(theta: Tensor, grad: Tensor, state: Tensor, lr: float) -> None:
    """The state is the first moments, the second moments and the number of steps, end to end."""
    p, (beta1, beta2) = theta.shape[-1], BETAS
    first, second, count = state[..., :p], state[..., p : 2 * p], state[..., 2 * p :]
    count += 1
    gone1, gone2 = (_one_minus_power(beta, count) for beta in BETAS)
    first.lerp_(grad, 1 - beta1)
    second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    root = second.sqrt().div_(gone2.sqrt().to(theta.dtype)).add_(EPSILON)
    theta.add_((first * (-lr / gone1).to(theta.dtype)).div_(root))


def _one_minus_power(beta: float, count: Tensor) -> Tensor:
    """1 - beta**count. The power is too close to 1 for single precision: in double or, on accelerators, by expm1."""
    if count.device.type == "cpu":
        return 1 - beta ** count.double()
    return -torch.expm1(count * math.log(beta))
