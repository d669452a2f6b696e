"""Many clients as one computation, for networks of linear layers with ReLU between.

The models of G clients lie in one (G, P) tensor, and a step of all of them is a handful of batched matrix products with
the gradient written out. Clients are in order of falling numbers of steps, so that those still training are always the
first k rows; a batch shorter than the others is filled up with samples of weight zero. The arithmetic is that of
`local.train`, which is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from coterie.blocks import Blocks
from coterie.errors import CoterieError
from coterie.local import Trained, Work, cuts, orders, plain_sgd
from coterie.model import Model, in_order
from coterie.span import First, Span, worth
from coterie.tasks import Local


@dataclass(frozen=True)
class Layer:
    """A linear layer: where its numbers lie in the model's vector, and whether a ReLU follows."""

    inputs: int
    outputs: int
    weight: int
    bias: int | None
    relu: bool

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return self.outputs * (self.inputs + (self.bias is not None))

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
    for module in in_order(model.blueprint) or ():
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


@dataclass(frozen=True, eq=False)
class _Plan:
    """All steps of a group: which rows of the stacked samples each takes, and how many of them count."""

    rows: Tensor  # (T, G, b) into the stacked samples
    starts: list[int]  # (G,) where a client's samples begin there
    many: Tensor  # (T, G) samples that count; 0: the client has finished
    stretches: list[tuple[int, int, int]]  # (first, last, clients still training): steps in which nobody finishes
    even: list[bool]  # (T,) every batch full: nothing to mask
    same: bool  # all steps take the same samples (full batches)


def _plan(works: Sequence[Work], starts: Sequence[int]) -> _Plan:
    each = [cuts(len(work.y), work.local) for work in works]
    steps = [steps_of(len(work.y), work.local) for work in works]
    widest = max(parts[0][1] for parts in each)
    rows = np.zeros((max(steps), len(works), widest), dtype=np.int64)
    many = np.zeros((max(steps), len(works)), dtype=np.int64)
    for g, (work, parts, start) in enumerate(zip(works, each, starts, strict=True)):
        n, size, per = len(work.y), parts[0][1], len(parts)
        sizes = [end - begin for begin, end in parts]
        order = orders(n, work.local, work.rng)
        for first in range(0, steps[g], per):
            mine = next(order)
            # What fills up is a sample of the client's own, with weight zero.
            filled = np.full(per * size, start, dtype=np.int64)
            filled[:n] = (np.arange(n) if mine is None else mine) + start
            last = min(first + per, steps[g])
            rows[first:last, g, :size] = filled.reshape(per, size)[: last - first]
            rows[first:last, g, size:] = start
            many[first:last, g] = sizes[: last - first]
    active = (many > 0).sum(1)
    ends = [*(np.flatnonzero(np.diff(active)) + 1).tolist(), len(active)]
    stretches = [(first, last, int(active[first])) for first, last in pairwise([0, *ends])]
    full = (many == widest).sum(1) == active
    same = all(len(parts) == 1 for parts in each)
    return _Plan(torch.from_numpy(rows), list(starts), torch.from_numpy(many), stretches, full.tolist(), same)


def steps_of(n: int, local: Local) -> int:
    """How many steps a client with n samples takes."""
    return local.steps if local.steps is not None else (local.epochs or 1) * len(cuts(n, local))


def in_span(work: Work, first: Layer) -> bool:
    """Whether a client's first layer is trained in the span of its samples, which plain steps do not leave."""
    n = len(work.y)
    seen = steps_of(n, work.local) * n // len(cuts(n, work.local))
    return plain_sgd(work.local) and worth(n, seen, first.inputs, first.outputs, work.proximal is not None)


def bytes_of(work: Work, layers: Sequence[Layer], spanned: bool) -> int:
    """About how much memory a client's steps go through again and again."""
    n, first = len(work.y), layers[0]
    batch = n if work.local.batch == "full" else min(work.local.batch, n)
    if spanned:
        many = n * n + (2 * n + batch) * first.outputs + work.start.numel() - first.size
    else:
        many = work.start.numel() + batch * first.inputs
    return work.start.element_size() * many


def train_together(
    layers: Sequence[Layer], loss: str, works: Sequence[Work], blocks: Blocks | None = None
) -> list[Trained]:
    """Train clients that share their settings (but not their data, starts, anchors, ...), in the order given.

    blocks: where their models come to lie.
    """
    order = sorted(range(len(works)), key=lambda g: -steps_of(len(works[g].y), works[g].local))
    group = _Group(layers, loss, [works[g] for g in order], blocks or Blocks())
    with torch.inference_mode():
        losses = group.train()
    # Taken outside inference mode: what a client keeps may be changed in place later.
    place = np.argsort(order).tolist()
    return [Trained(group.thetas[g], losses[g], group.state[g]) for g in place]


class _Group:
    def __init__(self, layers: Sequence[Layer], loss: str, works: Sequence[Work], blocks: Blocks) -> None:
        self.layers, self.loss, self.works, self.blocks = layers, loss, works, blocks
        self.local, self.lr = works[0].local, works[0].lr
        lengths = [len(work.y) for work in works]
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        self.plan = _plan(works, starts)
        self.x = torch.cat([work.x.reshape(len(work.x), -1) for work in works])
        self.y = torch.cat([work.y for work in works])
        self.offset = _stacked([work.offset for work in works])
        self.weights = _stacked([work.weights for work in works])
        self.thetas = self._copies([work.start for work in works])  # they are trained in place
        self.state = self._state()
        pulled = [work.proximal for work in works]
        self.anchor = None if pulled[0] is None else _rows([p.anchor for p in pulled if p is not None])
        self.mu = self.thetas.new_tensor([0.0 if p is None else p.mu for p in pulled])[:, None]
        self.span = self._span(lengths) if all(in_span(work, layers[0]) for work in works) else None
        self.cut = 0 if self.span is None else layers[0].size  # where what is not in it begins

    def _span(self, lengths: Sequence[int]) -> Span:
        first, plan = self.layers[0], self.plan
        if plan.same:
            x = self.x[plan.rows[0]]
        else:
            x = self.x.new_zeros(len(lengths), max(lengths), first.inputs)
            for mine, begin, n in zip(x, plan.starts, lengths, strict=True):
                mine[:n] = self.x[begin : begin + n]
        start = First(first.matrix(self.thetas), first.row(self.thetas))
        anchor = None if self.anchor is None else First(first.matrix(self.anchor), first.row(self.anchor))
        return Span(x, start, anchor, self.mu, self.lr)

    def _rows_in_span(self, first: int, last: int, k: int) -> Sequence[Tensor | None]:
        """Which rows of the span's samples each step takes."""
        if self.span is None or self.plan.same:
            return [None] * (last - first)
        shift = torch.arange(k) * self.span.n - torch.tensor(self.plan.starts[:k])
        return (self.plan.rows[first:last, :k] + shift[:, None]).flatten(1).unbind(0)

    def _state(self) -> Tensor:
        """(G, length) the optimisers' states."""
        p = self.thetas.shape[1]
        length = {"sgd": p if self.local.momentum else 0, "adam": 2 * p + 1}[self.local.optimizer]
        rows = []
        for work in self.works:
            if work.state is not None and work.state.shape != (length,):
                raise CoterieError("a kept optimiser state does not fit: the optimiser or the model has changed")
            rows.append(self.thetas.new_zeros(length) if work.state is None else work.state)
        return self._copies(rows)

    def _copies(self, vectors: Sequence[Tensor]) -> Tensor:
        """(G, length), even of one a copy."""
        room = self.blocks.empty((len(vectors), len(vectors[0])), vectors[0].dtype)
        return torch.stack(list(vectors), out=room)

    def train(self) -> list[float]:
        """All steps of all clients; their mean losses."""
        plan, width = self.plan, self.plan.rows.shape[2]
        # The weight of each sample in its batch's mean.
        inside = torch.arange(width) < plan.many[..., None]  # (T, G, b)
        share = inside.to(self.thetas.dtype) / plan.many.clamp(min=1)[..., None]
        share = share if self.weights is None else share * self.weights[plan.rows]
        losses = torch.zeros(*plan.rows.shape, 1, dtype=self.thetas.dtype)
        plain = plain_sgd(self.local) and self.anchor is None
        slopes = None if plain else self.blocks.empty(tuple(self.thetas.shape), self.thetas.dtype)
        for first, last, k in plan.stretches:
            self._stretch(first, last, k, share, losses, None if slopes is None else slopes[:k])
        if self.span is not None:
            self.span.write()
        mean = (losses[..., 0] * share).sum(2).sum(0) / (plan.many > 0).sum(0)
        return [float(value) for value in mean]

    def _stretch(self, first: int, last: int, k: int, share: Tensor, losses: Tensor, slopes: Tensor | None) -> None:
        """Steps with the same k clients: what does not change between them is made once, for small models count."""
        width = self.plan.rows.shape[2]
        thetas = self.thetas[:k]
        matrices = [layer.matrix(thetas) for layer in self.layers]
        turned = [matrix.transpose(1, 2) for matrix in matrices]
        biases = [layer.row(thetas) for layer in self.layers]
        into = matrices if slopes is None else [layer.matrix(slopes) for layer in self.layers]
        into_biases = biases if slopes is None else [layer.row(slopes) for layer in self.layers]
        rows = self.plan.rows[first:last, :k].flatten(1).unbind(0)
        span, places = self.span, self._rows_in_span(first, last, k)
        once = self.plan.same and span is None
        whole = self.x.index_select(0, rows[0]).view(k, width, -1) if once else self.x[:0]
        y = self.y[self.plan.rows[first:last, :k]]
        labels = (y if self.loss == "mse" else y[..., None]).unbind(0)
        minus = self.thetas.new_full((k, width, 1), -1.0)
        shares = share[first:last, :k, :, None].unbind(0)
        told = losses[first:last, :k].unbind(0)
        for t, row in enumerate(rows):
            seen = [whole if once or span is not None else self.x.index_select(0, row).view(k, width, -1)]
            for layer, matrix, bias in zip(self.layers, turned, biases, strict=True):
                if span is not None and len(seen) == 1:
                    a = span.say(places[t], k)
                else:
                    a = torch.bmm(seen[-1], matrix) if bias is None else torch.baddbmm(bias, seen[-1], matrix)
                seen.append(a.relu_() if layer.relu else a)
            z = seen.pop()
            if self.offset is not None:
                z = z + self.offset.index_select(0, row).view(k, width, -1)
            slope = _slope(self.loss, z, labels[t], told[t], minus)
            even = self.weights is None and self.plan.even[first + t]
            if not even:
                slope.mul_(shares[t])
            scale = 1.0 / width if even else 1.0
            alpha, beta = (-self.lr * scale, 1.0) if slopes is None else (scale, 0.0)
            for number in range(len(self.layers) - 1, -1, -1):
                below = torch.bmm(slope, matrices[number]) if number else None
                if number == 0 and span is not None:
                    span.learn(places[t], k, slope, -self.lr * scale)
                    break
                into[number].baddbmm_(slope.transpose(1, 2), seen[number], beta=beta, alpha=alpha)
                bias = into_biases[number]
                if bias is not None and slopes is None:
                    bias.add_(slope.sum(1, keepdim=True), alpha=alpha)
                elif bias is not None:
                    torch.mul(slope.sum(1, keepdim=True), alpha, out=bias)
                if below is not None:
                    # What a ReLU let through is positive: its sign is the slope, and much faster than a comparison.
                    slope = below.mul_(seen[number].sign_()) if self.layers[number - 1].relu else below
            if slopes is not None:
                self._step(thetas[:, self.cut :], slopes[:, self.cut :], self.state[:k], k)
        if self.loss != "mse":
            losses[first:last, :k].neg_()

    def _step(self, thetas: Tensor, slopes: Tensor, state: Tensor, k: int) -> None:
        """What `local.train` does with a gradient, for k models at once."""
        mu, lr = self.mu[:k], self.lr
        anchor = None if self.anchor is None else self.anchor[:k, self.cut :]
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


def _slope(loss: str, z: Tensor, labels: Tensor, told: Tensor, minus: Tensor) -> Tensor:
    """The slope of each sample's loss by what was said of it; the loss itself (minus it, of classes) goes into told."""
    if loss == "mse":
        slope = z - labels
        torch.mean(slope.square(), 2, keepdim=True, out=told)
        return slope.mul_(2.0 / z.shape[2])
    said = torch.log_softmax(z, 2)
    torch.gather(said, 2, labels, out=told)
    return said.exp_().scatter_add_(2, labels, minus)


def _rows(vectors: Sequence[Tensor]) -> Tensor:
    """(G, P), to be read only: one vector is not copied."""
    return vectors[0][None] if len(vectors) == 1 else torch.stack(list(vectors))


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
