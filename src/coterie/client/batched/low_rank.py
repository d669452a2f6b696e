"""A first layer trained in the span of its samples.

Every gradient of a first layer is a combination of the samples X (n, inputs), so plain SGD, with a proximal term to an
anchor C or without, leaves its matrix at

    W = a W0 + (1 - a) C + Q^T X        with Q (n, outputs) and a number a.

A bias is the weight of one more input, which is 1 in every sample.
The outputs W X^T need the products of the samples with W0 and C, which are computed once, and X X^T: a step on b
samples costs b n outputs multiplications instead of 2 b inputs outputs. With few samples, many inputs and several
epochs that is far less, and W itself is written once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.client.updates import proximal_factors

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
