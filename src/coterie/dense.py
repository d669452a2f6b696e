"""Many clients as one computation, for networks of linear layers with ReLU between.

The models of G clients lie in one (G, P) tensor, and a step of all of them is a handful of batched matrix products with
the gradient written out. Clients are in order of falling numbers of steps, so that those still training are always the
first k rows; a batch shorter than the others is filled up with samples of weight zero. The arithmetic is that of
`local.train`, which is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from coterie.errors import CoterieError
from coterie.local import Trained, Work, batches
from coterie.model import Model
from coterie.tasks import Local


@dataclass(frozen=True)
class Layer:
    """A linear layer: where its numbers lie in the model's vector, and whether a ReLU follows."""

    inputs: int
    outputs: int
    weight: int
    bias: int | None
    relu: bool

    def matrix(self, thetas: Tensor) -> Tensor:
        """(G, outputs, inputs)."""
        part = thetas[:, self.weight : self.weight + self.inputs * self.outputs]
        return part.view(len(thetas), self.outputs, self.inputs)

    def row(self, thetas: Tensor) -> Tensor | None:
        """(G, 1, outputs), if it has a bias."""
        return None if self.bias is None else thetas[:, None, self.bias : self.bias + self.outputs]


def layers_of(model: Model) -> tuple[Layer, ...] | None:
    """The layers of a network that is nothing but linear layers, ReLUs and a flattening; None for any other."""
    found: list[Layer] = []
    start = 0
    for module in _in_order(model.blueprint):
        if type(module) is nn.Linear:
            if not all(p.requires_grad for p in module.parameters()):
                return None
            size = module.in_features * module.out_features
            bias = None if module.bias is None else start + size
            if found and found[-1].outputs != module.in_features:
                return None
            found.append(Layer(module.in_features, module.out_features, start, bias, relu=False))
            start += size + (0 if module.bias is None else module.out_features)
        elif type(module) is nn.ReLU and found:
            last = found.pop()
            found.append(Layer(last.inputs, last.outputs, last.weight, last.bias, relu=True))
        elif not (type(module) is nn.Identity or (type(module) is nn.Flatten and not found and module.start_dim == 1)):
            return None
    whole = start == model.size == model.parameters
    return tuple(found) if found and whole and not found[-1].relu else None


def _in_order(network: nn.Module) -> list[nn.Module]:
    if type(network) is not nn.Sequential or _hooked(network):
        return [network]
    return [module for child in network for module in _in_order(child)]


def _hooked(network: nn.Module) -> bool:
    """A user's hook would not be called here."""
    return bool(network._forward_hooks or network._forward_pre_hooks or network._backward_hooks)


def forward(layers: Sequence[Layer], thetas: Tensor, x: Tensor) -> Tensor:
    """What each of G models says of the same samples: (n, inputs) -> (G, n, outputs)."""
    a = x.reshape(len(x), -1).expand(len(thetas), len(x), layers[0].inputs)
    for layer in layers:
        a = _affine(layer, thetas, a)
        if layer.relu:
            a = a.relu_()
    return a


def _affine(layer: Layer, thetas: Tensor, a: Tensor) -> Tensor:
    matrix, row = layer.matrix(thetas).transpose(1, 2), layer.row(thetas)
    return torch.bmm(a, matrix) if row is None else torch.baddbmm(row, a, matrix)


@dataclass(frozen=True, eq=False)
class _Plan:
    """All steps of a group: which rows of the stacked samples each takes, and how many of them count."""

    rows: Tensor  # (T, G, b) into the stacked samples
    many: Tensor  # (T, G) samples that count; 0: the client has finished
    active: list[int]  # (T,) clients still training
    even: list[bool]  # (T,) every batch full: nothing to mask
    same: bool  # all steps take the same samples (full batches)


def _plan(works: Sequence[Work], starts: Sequence[int]) -> _Plan:
    each = []
    for work in works:
        n = len(work.y)
        takes = [np.arange(n) if take is None else take.numpy() for take in batches(n, work.local, work.rng)]
        each.append(takes)
    steps, widest = max(len(takes) for takes in each), max(len(take) for takes in each for take in takes)
    rows = np.zeros((steps, len(works), widest), dtype=np.int64)
    many = np.zeros((steps, len(works)), dtype=np.int64)
    for g, (takes, start) in enumerate(zip(each, starts, strict=True)):
        rows[:, g] = start  # what fills up is a sample of the client's own, with weight zero
        for t, take in enumerate(takes):
            rows[t, g, : len(take)] = take + start
            many[t, g] = len(take)
    active = (many > 0).sum(1)
    even = [bool((many[t, :k] == widest).all()) for t, k in enumerate(active)]
    same = all(work.local.batch == "full" for work in works)
    return _Plan(torch.from_numpy(rows), torch.from_numpy(many), active.tolist(), even, same)


def steps_of(n: int, local: Local) -> int:
    """How many steps a client with n samples takes."""
    if local.steps is not None:
        return local.steps
    size = n if local.batch == "full" else min(local.batch, n)
    return (local.epochs or 1) * -(-n // size)


def train_together(layers: Sequence[Layer], loss: str, works: Sequence[Work]) -> list[Trained]:
    """Train clients that share their settings (but not their data, starts, anchors, ...), in the order given."""
    order = sorted(range(len(works)), key=lambda g: -steps_of(len(works[g].y), works[g].local))
    with torch.inference_mode():
        results = _Group(layers, loss, [works[g] for g in order]).train()
    back = np.argsort(order)
    # Copies, made outside inference mode: what a client keeps may be changed in place later.
    found = (results[g] for g in back.tolist())
    return [Trained(result.theta.clone(), result.loss, result.state.clone()) for result in found]


class _Group:
    def __init__(self, layers: Sequence[Layer], loss: str, works: Sequence[Work]) -> None:
        self.layers, self.loss, self.works = layers, loss, works
        self.local, self.lr = works[0].local, works[0].lr
        lengths = [len(work.y) for work in works]
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        self.plan = _plan(works, starts)
        self.x = torch.cat([work.x.reshape(len(work.x), -1) for work in works])
        self.y = torch.cat([work.y for work in works])
        self.offset = _stacked([work.offset for work in works])
        self.weights = _stacked([work.weights for work in works])
        self.thetas = torch.stack([work.start for work in works])
        self.state = self._state()
        pulled = [work.proximal for work in works]
        self.anchor = None if pulled[0] is None else torch.stack([p.anchor for p in pulled if p is not None])
        self.mu = self.thetas.new_tensor([0.0 if p is None else p.mu for p in pulled])[:, None]

    def _state(self) -> Tensor:
        """(G, length) the optimisers' states."""
        p = self.thetas.shape[1]
        length = {"sgd": p if self.local.momentum else 0, "adam": 2 * p + 1}[self.local.optimizer]
        rows = []
        for work in self.works:
            if work.state is not None and work.state.shape != (length,):
                raise CoterieError("a kept optimiser state does not fit: the optimiser or the model has changed")
            rows.append(self.thetas.new_zeros(length) if work.state is None else work.state)
        return torch.stack(rows)

    def train(self) -> list[Trained]:
        """All steps of all clients."""
        steps, width = len(self.plan.active), self.plan.rows.shape[2]
        y = self.y[self.plan.rows]  # (T, G, b) or (T, G, b, targets)
        # The weight of each sample in its batch's mean; None where all have the same.
        inside = torch.arange(width) < self.plan.many[..., None]  # (T, G, b)
        share = inside.to(self.thetas.dtype) / self.plan.many.clamp(min=1)[..., None]
        share = share if self.weights is None else share * self.weights[self.plan.rows]
        even = [self.weights is None and self.plan.even[t] for t in range(steps)]
        losses = torch.zeros(steps, len(self.works), width, dtype=self.thetas.dtype)
        plain = self.local.optimizer == "sgd" and not self.local.momentum and not self.local.weight_decay
        fused = plain and self.anchor is None
        slopes = None if fused else torch.empty_like(self.thetas)
        same = self.plan.same
        x = self.x.index_select(0, self.plan.rows[0].reshape(-1)).view(len(self.works), width, -1) if same else None
        for t, k in enumerate(self.plan.active):
            rows = self.plan.rows[t, :k].reshape(-1)
            thetas = self.thetas[:k]
            seen = self._forward(thetas, self.x.index_select(0, rows).view(k, width, -1) if x is None else x[:k])
            offset = None if self.offset is None else self.offset.index_select(0, rows).view(k, width, -1)
            slope = self._outer(seen[-1], offset, y[t, :k], losses[t, :k])
            if not even[t]:
                slope.mul_(share[t, :k, :, None])
            scale = 1.0 / width if even[t] else 1.0
            if slopes is None:
                self._descend(thetas, seen, slope, thetas, 1.0, -self.lr * scale)
            else:
                self._descend(thetas, seen, slope, slopes[:k], 0.0, scale)
                self._step(thetas, slopes[:k], self.state[:k], k)
        mean = (losses * share).sum(2).sum(0) / (self.plan.many > 0).sum(0)
        return [Trained(self.thetas[g], float(mean[g]), self.state[g]) for g in range(len(self.works))]

    def _forward(self, thetas: Tensor, x: Tensor) -> list[Tensor]:
        """The inputs of every layer, and the logits."""
        seen = [x]
        for layer in self.layers:
            a = _affine(layer, thetas, seen[-1])
            seen.append(a.relu_() if layer.relu else a)
        return seen

    def _outer(self, logits: Tensor, offset: Tensor | None, y: Tensor, losses: Tensor) -> Tensor:
        """The slope of every sample's loss with respect to its logits; the losses are put where they belong."""
        z = logits if offset is None else logits + offset
        if self.loss == "mse":
            apart = z - y
            losses.copy_(apart.square().mean(2))
            return apart.mul_(2.0 / z.shape[2])
        said = torch.log_softmax(z, 2)
        label = y[..., None]
        torch.neg(said.gather(2, label)[..., 0], out=losses)
        return said.exp_().scatter_add_(2, label, torch.full_like(label, -1.0, dtype=z.dtype))

    def _descend(
        self, thetas: Tensor, seen: Sequence[Tensor], slope: Tensor, into: Tensor, beta: float, alpha: float
    ) -> None:
        """into = beta * into + alpha * gradient, beta 0 or 1, layer by layer from the last; into may be the models."""
        for number in range(len(self.layers) - 1, -1, -1):
            layer, a = self.layers[number], seen[number]
            below = None
            if number:
                below = torch.bmm(slope, layer.matrix(thetas))
                if self.layers[number - 1].relu:
                    below.mul_(a > 0)
            layer.matrix(into).baddbmm_(slope.transpose(1, 2), a, beta=beta, alpha=alpha)
            row = layer.row(into)
            if row is not None and beta:
                row.add_(slope.sum(1, keepdim=True), alpha=alpha)
            elif row is not None:
                torch.mul(slope.sum(1, keepdim=True), alpha, out=row)
            if below is not None:
                slope = below

    def _step(self, thetas: Tensor, slopes: Tensor, state: Tensor, k: int) -> None:
        """What `local.train` does with a gradient, for k models at once."""
        mu, lr = self.mu[:k], self.lr
        anchor = None if self.anchor is None else self.anchor[:k]
        explicit = lr * mu <= 1
        if anchor is not None:
            slopes.add_((thetas - anchor) * (mu * explicit))
        if self.local.weight_decay:
            slopes.add_(thetas, alpha=self.local.weight_decay)
        if self.local.optimizer == "adam":
            _adam(thetas, slopes, state, lr)
        elif self.local.momentum:
            state.mul_(self.local.momentum).add_(slopes)
            thetas.add_(state, alpha=-lr)
        else:
            thetas.add_(slopes, alpha=-lr)
        if anchor is not None and not bool(explicit.all()):
            pull = torch.where(explicit, torch.zeros_like(mu), lr * mu / (1 + lr * mu))
            thetas.lerp_(anchor, pull.expand_as(thetas))


def _adam(thetas: Tensor, slopes: Tensor, state: Tensor, lr: float, beta1: float = 0.9, beta2: float = 0.999) -> None:
    p = thetas.shape[1]
    first, second, count = state[:, :p], state[:, p : 2 * p], state[:, 2 * p :]
    count += 1
    first.lerp_(slopes, 1 - beta1)
    second.mul_(beta2).addcmul_(slopes, slopes, value=1 - beta2)
    root = second.sqrt().div_((1 - beta2**count).sqrt()).add_(1e-8)
    thetas.sub_(first.div(root).mul_(lr / (1 - beta1**count)))


def _stacked(parts: Sequence[Tensor | None]) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return torch.cat(given) if given else None
