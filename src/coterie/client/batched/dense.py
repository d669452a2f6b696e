"""Training of many clients as one computation, for networks of linear layers with ReLU between.

The models of G clients are one (G, P) tensor, and a step of all of them is a handful of batched matrix products with
the gradient written out. Clients are ordered by descending numbers of steps, so that those still training are the
first k rows. A batch shorter than the others is filled up with samples of weight zero. What a gradient does to a model
is `UpdateRule`, as in `train`, which is the reference.

A first layer with few samples and many inputs is trained in the span of its samples. Every gradient of a first layer is
a combination of the samples X (n, inputs), so plain SGD, with a proximal term to an anchor C or without, leaves its
matrix at

    W = a W0 + (1 - a) C + Q^T X        with Q (n, outputs) and a number a.

A bias is the weight of one more input, which is 1 in every sample.
The outputs W X^T need the products of the samples with W0 and C, which are computed once, and X X^T: a step on b
samples costs b n outputs multiplications instead of 2 b inputs outputs. With few samples, many inputs and several
epochs that is far less, and W itself is written once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from coterie.client.training import (
    LocalTraining,
    Proximal,
    TrainingResult,
    cuts,
    initial_state,
    make_plan,
    proximal_factors,
    steps_of,
)
from coterie.core.allocation import BufferPool
from coterie.core.model import Model, layers_in_order
from coterie.core.objective import AnyLoss


@dataclass(frozen=True)
class Layer:
    """A linear layer: the position of its parameters in the model's vector, and whether a ReLU follows."""

    inputs: int
    outputs: int
    weight: int
    bias: int | None
    relu: bool

    @property
    def size(self) -> int:
        """The number of its parameters."""
        return self.outputs * (self.inputs + (self.bias is not None))

    def matrix(self, thetas: Tensor) -> Tensor:
        """(G, outputs, inputs)."""
        part = thetas[:, self.weight : self.weight + self.inputs * self.outputs]
        return part.view(len(thetas), self.outputs, self.inputs)

    def bias_of(self, thetas: Tensor) -> Tensor | None:
        """(G, 1, outputs), if it has a bias."""
        return None if self.bias is None else thetas[:, None, self.bias : self.bias + self.outputs]


def layers_of(model: Model) -> tuple[Layer, ...] | None:
    """The layers of a network that is nothing but linear layers, ReLUs and a flattening; None for any other."""
    if not isinstance(model.loss, str):  # whose gradient is not known here
        return None
    found: list[Layer] = []
    start = 0
    for module in layers_in_order(model.blueprint) or ():
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


MARGIN = 0.75  # share of the multiplications of direct training above which the copies do not pay


def multiplications(n: int, seen: int, inputs: int, outputs: int, anchored: bool) -> int:
    """Of this way, for a client with n samples, given the total number of samples in all its steps."""
    return (2 + anchored) * n * inputs * outputs + n * n * inputs + seen * n * outputs


def saves_time(n: int, seen: int, inputs: int, outputs: int, anchored: bool) -> bool:
    """Whether this is faster than direct training."""
    return multiplications(n, seen, inputs, outputs, anchored) < MARGIN * 2 * seen * inputs * outputs


@dataclass(frozen=True, eq=False)
class FirstLayers:
    """The first layers of G models: matrices (G, outputs, inputs), and biases (G, 1, outputs) if they have them."""

    matrix: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """(G, n, inputs) -> (G, n, outputs)."""
        transposed = self.matrix.transpose(1, 2)
        return torch.bmm(x, transposed) if self.bias is None else torch.baddbmm(self.bias, x, transposed)


class LowRankTraining:
    """The training of G clients' first layers on their samples (G, n, inputs)."""

    def __init__(self, x: Tensor, start: FirstLayers, anchor: FirstLayers | None, mu: Tensor, lr: float) -> None:
        self.x, self.start, self.anchor = x, start, anchor
        clients, self.n, _ = x.shape
        self.gram = torch.bmm(x, x.transpose(1, 2))
        if start.bias is not None:
            self.gram += 1
        self.base = start.forward(x)  # the outputs of W0; with an anchor, minus those of C
        self.q = torch.zeros_like(self.base)
        self.a = x.new_ones(clients, 1, 1)
        self.moved = False  # whether Q is anything but zero
        if anchor is not None:
            self.anchor_outputs = anchor.forward(x)
            self.base -= self.anchor_outputs
        self.distance, self.length = proximal_factors(lr, mu[:, :, None])

    def forward(self, rows: Tensor | None, k: int) -> Tensor:
        """The outputs of the first k clients' layers (k, b, outputs), for these rows of their samples or for all."""
        base = _take(self.base, rows, k)
        if self.anchor is not None:
            base = torch.addcmul(_take(self.anchor_outputs, rows, k), base, self.a[:k])
        if not self.moved:
            return base.clone() if rows is None and self.anchor is None else base  # it will be changed in place
        return torch.baddbmm(base, _take(self.gram, rows, k), self.q[:k])

    def step(self, rows: Tensor | None, k: int, slope: Tensor, alpha: float) -> None:
        """A step along the gradient by the outputs, `slope` (k, b, outputs); alpha is minus its length."""
        self.moved, q = True, self.q[:k]
        if self.anchor is not None:
            q.mul_(self.distance[:k])
            self.a[:k].mul_(self.distance[:k])
            slope = slope * self.length[:k]
        if rows is None:
            q.add_(slope, alpha=alpha)
        else:
            q.view(-1, q.shape[2]).index_add_(0, rows, slope.reshape(-1, q.shape[2]), alpha=alpha)

    def write_back(self) -> None:
        """Put the trained layers where they started from."""
        start, share = self.start, 1 - self.a
        if self.anchor is not None:
            start.matrix.lerp_(self.anchor.matrix, share)
        start.matrix.baddbmm_(self.q.transpose(1, 2), self.x)
        if start.bias is not None:
            if self.anchor is not None and self.anchor.bias is not None:
                start.bias.lerp_(self.anchor.bias, share)
            start.bias.add_(self.q.sum(1, keepdim=True))


def _take(table: Tensor, rows: Tensor | None, k: int) -> Tensor:
    """(G, n, m) -> (k, b, m)."""
    if rows is None:
        return table[:k]
    return table.flatten(0, 1).index_select(0, rows).view(k, -1, table.shape[2])


def trains_low_rank(training: LocalTraining, first: Layer) -> bool:
    """Whether a client's first layer is trained in the span of its samples, which plain steps do not leave."""
    n = len(training.y)
    seen = steps_of(n, training.local) * n // len(cuts(n, training.local))
    return (
        training.only is None
        and training.rule.plain
        and saves_time(n, seen, first.inputs, first.outputs, training.proximal is not None)
    )


def bytes_of(training: LocalTraining, layers: Sequence[Layer], low_rank: bool) -> int:
    """The approximate memory that each step of a client reads and writes."""
    n, first = len(training.y), layers[0]
    batch = n if training.local.batch == "full" else min(training.local.batch, n)
    if low_rank:
        numbers = n * n + (2 * n + batch) * first.outputs + training.start.numel() - first.size
    else:
        numbers = training.start.numel() + batch * first.inputs
    return training.start.element_size() * numbers


def train_together(
    layers: Sequence[Layer], loss: AnyLoss, trainings: Sequence[LocalTraining], blocks: BufferPool | None = None
) -> list[TrainingResult]:
    """Train clients that share their settings (but not their data, starts, anchors, ...), in the order given.

    blocks: where memory for their models is taken from.
    """
    order = sorted(range(len(trainings)), key=lambda g: -steps_of(len(trainings[g].y), trainings[g].local))
    group = _Group(layers, loss, [trainings[g] for g in order], blocks or BufferPool())
    with torch.inference_mode():
        losses = group.train()
    # Taken outside inference mode: what a client keeps may be changed in place later.
    place = np.argsort(order).tolist()
    return [TrainingResult(group.thetas[g], losses[g], group.state[g]) for g in place]


class _Group:
    """Clients that train together: their samples, models and optimiser states, stacked."""

    def __init__(
        self, layers: Sequence[Layer], loss: AnyLoss, trainings: Sequence[LocalTraining], blocks: BufferPool
    ) -> None:
        self.layers, self.loss, self.blocks = layers, loss, blocks
        self.rule = trainings[0].rule
        lengths = [len(training.y) for training in trainings]
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        self.plan = make_plan(trainings, starts).to(trainings[0].start.device)
        self.x = torch.cat([training.x.reshape(len(training.x), -1) for training in trainings])
        self.y = torch.cat([training.y for training in trainings])
        self.offset = _concatenated([training.offset for training in trainings])
        self.weights = _concatenated([training.weights for training in trainings])
        self.thetas = self._copies([training.start for training in trainings])  # they are trained in place
        self.span = trainings[0].span or slice(0, self.thetas.shape[1])  # what is trained: for all of them the same
        starting = zip(trainings, self.thetas[:, self.span], strict=True)
        states = [initial_state(t.local, theta, t.state) for t, theta in starting]
        self.state = self._copies(states)
        self.proximal = self._proximal([training.proximal for training in trainings])
        low_rank = all(trains_low_rank(training, layers[0]) for training in trainings)
        self.low_rank = self._low_rank(lengths) if low_rank else None
        begin = self.span.start if self.low_rank is None else layers[0].size  # where what is trained directly begins
        self.columns = slice(begin, self.span.stop)

    def _copies(self, vectors: Sequence[Tensor]) -> Tensor:
        """(G, length): a copy, even of a single vector."""
        room = self.blocks.empty((len(vectors), len(vectors[0])), vectors[0].dtype)
        return torch.stack(list(vectors), out=room)

    def _proximal(self, terms: Sequence[Proximal | None]) -> Proximal | None:
        given = [term for term in terms if term is not None]
        if not given:
            return None
        anchors = [term.anchor for term in given]  # read only: a single one is not copied
        anchor = anchors[0][None] if len(anchors) == 1 else torch.stack(anchors)
        return Proximal(anchor, self.thetas.new_tensor([float(term.mu) for term in given])[:, None])

    def _low_rank(self, lengths: Sequence[int]) -> LowRankTraining:
        first, plan, proximal = self.layers[0], self.plan, self.proximal
        if plan.same:
            x = self.x[plan.rows[0]]
        else:
            x = self.x.new_zeros(len(lengths), max(lengths), first.inputs)
            for own, begin, n in zip(x, plan.starts, lengths, strict=True):
                own[:n] = self.x[begin : begin + n]
        start = FirstLayers(first.matrix(self.thetas), first.bias_of(self.thetas))
        if proximal is None:
            return LowRankTraining(x, start, None, self.thetas.new_zeros(len(lengths), 1), self.rule.lr)
        assert isinstance(proximal.mu, Tensor)
        anchor = FirstLayers(first.matrix(proximal.anchor), first.bias_of(proximal.anchor))
        return LowRankTraining(x, start, anchor, proximal.mu, self.rule.lr)

    def train(self) -> list[float]:
        """All steps of all clients; their mean losses."""
        plan, width = self.plan, self.plan.rows.shape[2]
        # The weight of each sample in its batch's mean.
        inside = torch.arange(width, device=plan.sizes.device) < plan.sizes[..., None]  # (T, G, b)
        share = inside.to(self.thetas.dtype) / plan.sizes.clamp(min=1)[..., None]
        share = share if self.weights is None else share * self.weights[plan.rows]
        losses = self.thetas.new_zeros(*plan.rows.shape, 1)
        whole = self.span == slice(0, self.thetas.shape[1])
        plain = self.rule.plain and self.proximal is None and whole
        grads = None if plain else self.blocks.empty(tuple(self.thetas.shape), self.thetas.dtype)
        for first, last, k in plan.segments:
            _Segment(self, first, last, k, share, losses, None if grads is None else grads[:k]).train()
        if self.low_rank is not None:
            self.low_rank.write_back()
        mean = (losses[..., 0] * share).sum(2).sum(0) / (plan.sizes > 0).sum(0)
        found: list[float] = mean.tolist()
        return found


class _Segment:
    """Steps with the same k clients. What does not change between them is made once, which matters for small models."""

    def __init__(
        self, group: _Group, first: int, last: int, k: int, share: Tensor, losses: Tensor, grads: Tensor | None
    ) -> None:
        """share (T, G, b): weights of samples; losses (T, G, b, 1): written to; grads (k, P): None for plain SGD."""
        self.group, self.first, self.k, self.grads = group, first, k, grads
        self.layers, plan = group.layers, group.plan
        self.width = plan.rows.shape[2]
        self.thetas, self.state = group.thetas[:k], group.state[:k]
        self.matrices = [layer.matrix(self.thetas) for layer in self.layers]
        self.transposed = [matrix.transpose(1, 2) for matrix in self.matrices]
        self.biases = [layer.bias_of(self.thetas) for layer in self.layers]
        # Where gradients go: for plain SGD straight into the model.
        self.into = self.matrices if grads is None else [layer.matrix(grads) for layer in self.layers]
        self.into_biases = self.biases if grads is None else [layer.bias_of(grads) for layer in self.layers]
        self.rows = plan.rows[first:last, :k].flatten(1).unbind(0)
        self.low_rank = group.low_rank
        self.low_rank_rows = self._low_rank_rows(last)
        once = plan.same and self.low_rank is None
        self.samples = group.x.index_select(0, self.rows[0]).view(k, self.width, -1) if once else None
        y = group.y[plan.rows[first:last, :k]]
        self.labels = (y if group.loss == "mse" else y[..., None]).unbind(0)
        self.minus = group.thetas.new_full((k, self.width, 1), -1.0)
        self.shares = share[first:last, :k, :, None].unbind(0)
        self.all_losses = losses[first:last, :k]
        self.losses = self.all_losses.unbind(0)
        proximal = group.proximal
        if proximal is not None:
            assert isinstance(proximal.mu, Tensor)
            proximal = Proximal(proximal.anchor[:k, group.columns], proximal.mu[:k])
        self.proximal = proximal

    def _low_rank_rows(self, last: int) -> Sequence[Tensor | None]:
        """Which rows of the clients' own samples each step takes."""
        plan = self.group.plan
        if self.low_rank is None or plan.same:
            return [None] * (last - self.first)
        shift = torch.arange(self.k) * self.low_rank.n - torch.tensor(plan.starts[: self.k])
        rows = plan.rows[self.first : last, : self.k] + shift.to(plan.rows.device)[:, None]
        return rows.flatten(1).unbind(0)

    def train(self) -> None:
        """All steps of the segment."""
        group, columns = self.group, self.group.columns
        for t in range(len(self.rows)):
            inputs, outputs = self.forward(t)
            slope = _loss_gradient(group.loss, outputs, self.labels[t], self.losses[t], self.minus)
            full = group.weights is None and group.plan.full[self.first + t]
            if not full:
                slope.mul_(self.shares[t])
            self.backward(t, inputs, slope, 1.0 / self.width if full else 1.0)
            if self.grads is not None:
                group.rule.step(self.thetas[:, columns], self.grads[:, columns], self.state, self.proximal)
        if group.loss != "mse":
            self.all_losses.neg_()

    def forward(self, t: int) -> tuple[list[Tensor], Tensor]:
        """The inputs of every layer at a step, and the outputs of the last."""
        group, row = self.group, self.rows[t]
        inputs: list[Tensor] = []
        for layer, matrix, bias in zip(self.layers, self.transposed, self.biases, strict=True):
            if not inputs and self.low_rank is not None:
                inputs.append(group.x[:0])  # not needed: the gradient does not go through them
                a = self.low_rank.forward(self.low_rank_rows[t], self.k)
            else:
                if not inputs:
                    inputs.append(self._take(group.x, row) if self.samples is None else self.samples)
                a = torch.bmm(inputs[-1], matrix) if bias is None else torch.baddbmm(bias, inputs[-1], matrix)
            inputs.append(a.relu_() if layer.relu else a)
        outputs = inputs.pop()
        return inputs, outputs if group.offset is None else outputs + self._take(group.offset, row)

    def _take(self, table: Tensor, row: Tensor) -> Tensor:
        return table.index_select(0, row).view(self.k, self.width, -1)

    def backward(self, t: int, inputs: list[Tensor], slope: Tensor, scale: float) -> None:
        """From the gradient by the outputs to those of all layers; plain SGD takes its step at once."""
        lr = self.group.rule.lr
        alpha, beta = (-lr * scale, 1.0) if self.grads is None else (scale, 0.0)
        for number in range(len(self.layers) - 1, -1, -1):
            if number == 0 and self.low_rank is not None:
                self.low_rank.step(self.low_rank_rows[t], self.k, slope, -lr * scale)
                return
            below = torch.bmm(slope, self.matrices[number]) if number else None
            self.into[number].baddbmm_(slope.transpose(1, 2), inputs[number], beta=beta, alpha=alpha)
            bias = self.into_biases[number]
            if bias is not None and self.grads is None:
                bias.add_(slope.sum(1, keepdim=True), alpha=alpha)
            elif bias is not None:
                torch.mul(slope.sum(1, keepdim=True), alpha, out=bias)
            if below is not None:
                # The output of a ReLU is zero or positive: its sign is the slope, and much faster than a comparison.
                slope = below.mul_(inputs[number].sign_()) if self.layers[number - 1].relu else below


def _loss_gradient(loss: AnyLoss, outputs: Tensor, labels: Tensor, losses: Tensor, minus: Tensor) -> Tensor:
    """The gradient of each sample's loss by the outputs. The losses (of classes: negated) are put in `losses`."""
    if loss == "mse":
        slope = outputs - labels
        torch.mean(slope.square(), 2, keepdim=True, out=losses)
        return slope.mul_(2.0 / outputs.shape[2])
    log_p = torch.log_softmax(outputs, 2)
    torch.gather(log_p, 2, labels, out=losses)
    return log_p.exp_().scatter_add_(2, labels, minus)


def _concatenated(parts: Sequence[Tensor | None]) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return torch.cat(given) if given else None
