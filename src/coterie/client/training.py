"""Local training of one client, the reference implementation: all that methods may vary is a parameter.

A step descends  mean_b w_b * loss(f(theta, x_b) + offset_b, y_b) + mu/2 |theta - anchor|^2; how the gradient changes
the model is `UpdateRule`, which `batched.dense` uses too. The batches are drawn from the (seed, round, task,
client) generator.

The update rules are written once: SGD, momentum, Adam, weight decay, clipping, the proximal term.

They act in place on vectors (..., P): one client's (P,) in sequential training, or one row per client (G, P) where many
train together. An optimiser's state is one tensor (..., length), so that a client can keep it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from coterie.core.errors import CoterieError
from coterie.core.model import Replica, channels_last
from coterie.core.objective import sample_losses
from coterie.core.tasks import Local

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


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """All steps of a group: which rows of the stacked samples each takes, and how many of them count."""

    rows: Tensor  # (T, G, b) into the stacked samples
    starts: list[int]  # (G,) where a client's samples begin among them
    sizes: Tensor  # (T, G) samples that count; 0: the client has finished
    segments: list[tuple[int, int, int]]  # (first, last, clients still training): steps in which no client finishes
    full: list[bool]  # (T,) every batch full: nothing to mask
    same: bool  # all steps take the same samples (full batches)

    def to(self, device: torch.device) -> BatchPlan:
        """The same plan on a device: it is made on the host, so that every device sees the same batches."""
        return replace(self, rows=self.rows.to(device), sizes=self.sizes.to(device))


def make_plan(trainings: Sequence[LocalTraining], starts: Sequence[int]) -> BatchPlan:
    """starts: where each client's samples begin among those of all."""
    parts = [cuts(len(training.y), training.local) for training in trainings]
    steps = [steps_of(len(training.y), training.local) for training in trainings]
    widest = max(own[0][1] for own in parts)
    rows = np.zeros((max(steps), len(trainings), widest), dtype=np.int64)
    sizes = np.zeros((max(steps), len(trainings)), dtype=np.int64)
    for g, training in enumerate(trainings):
        _plan_client(training, parts[g], steps[g], starts[g], rows[:, g], sizes[:, g])
    active = (sizes > 0).sum(1)
    ends = [*(np.flatnonzero(np.diff(active)) + 1).tolist(), len(active)]
    segments = [(first, last, int(active[first])) for first, last in pairwise([0, *ends])]
    full = (sizes == widest).sum(1) == active
    same = all(len(own) == 1 for own in parts)
    return BatchPlan(torch.from_numpy(rows), list(starts), torch.from_numpy(sizes), segments, full.tolist(), same)


def _plan_client(
    training: LocalTraining,
    parts: Sequence[tuple[int, int]],
    steps: int,
    start: int,
    rows: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Fill in one client's rows (T, b) and batch sizes (T,)."""
    n, size, per_epoch = len(training.y), parts[0][1], len(parts)
    batch_sizes = [end - begin for begin, end in parts]
    order = orders(n, training.local, training.rng)
    for first in range(0, steps, per_epoch):
        drawn = next(order)
        # A short batch is padded with one of the client's own samples, with weight zero.
        filled = np.full(per_epoch * size, start, dtype=np.int64)
        filled[:n] = (np.arange(n) if drawn is None else drawn) + start
        last = min(first + per_epoch, steps)
        rows[first:last, :size] = filled.reshape(per_epoch, size)[: last - first]
        rows[first:last, size:] = start
        sizes[first:last] = batch_sizes[: last - first]


def steps_of(n: int, local: Local) -> int:
    """How many steps a client with n samples takes."""
    return local.steps if local.steps is not None else (local.epochs or 1) * len(cuts(n, local))
