"""A first layer that is trained in the span of its samples.

Every gradient of a first layer is a combination of the samples X (n, inputs), so SGD, pulled to an anchor C or not,
leaves its matrix at

    W = a W0 + (1 - a) C + Q^T X        with Q (n, outputs) and a number a.

A bias is the weight of one more input, which is 1 in every sample.
What W says of the samples needs their products with W0 and C, which are made once, and X X^T: a step on b samples costs
b n outputs multiplications instead of 2 b inputs outputs. With few samples, many inputs and several epochs that is
the smaller number by far, and W itself is written once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MARGIN = 0.75  # of the multiplications of the plain way: fewer than this, or it is not worth its copies


def worth(n: int, seen: int, inputs: int, outputs: int, anchored: bool) -> bool:
    """Whether it saves time, for a client with n samples that sees so many in all its steps."""
    span = (2 + anchored) * n * inputs * outputs + n * n * inputs + seen * n * outputs
    return span < MARGIN * 2 * seen * inputs * outputs


@dataclass(frozen=True, eq=False)
class First:
    """The first layers of G models: matrices (G, outputs, inputs), and biases (G, 1, outputs) if they have them."""

    matrix: Tensor
    bias: Tensor | None

    def say(self, x: Tensor) -> Tensor:
        """(G, n, inputs) -> (G, n, outputs)."""
        turned = self.matrix.transpose(1, 2)
        return torch.bmm(x, turned) if self.bias is None else torch.baddbmm(self.bias, x, turned)


class Span:
    """The training of G clients' first layers on their samples (G, n, inputs)."""

    def __init__(self, x: Tensor, start: First, anchor: First | None, mu: Tensor, lr: float) -> None:
        self.x, self.start, self.anchor = x, start, anchor
        many, self.n, _ = x.shape
        self.gram = torch.bmm(x, x.transpose(1, 2))
        if start.bias is not None:
            self.gram += 1
        self.lean = start.say(x)  # what W0 says, and with an anchor by how much it is more than what C says
        self.held = torch.zeros_like(self.lean)  # Q
        self.kept = x.new_ones(many, 1, 1)  # a
        self.learnt = False  # whether Q is anything but zero
        if anchor is not None:
            self.said = anchor.say(x)
            self.lean -= self.said
        # See `local.Proximal`: explicit while lr mu <= 1, else implicit, which also shortens the step itself.
        pull = (lr * mu)[:, :, None]
        self.leave = torch.where(pull <= 1, 1 - pull, 1 / (1 + pull))
        self.length = torch.where(pull <= 1, torch.ones_like(pull), self.leave)

    def say(self, rows: Tensor | None, k: int) -> Tensor:
        """What the first k clients' layers say of their samples (k, b, outputs): of these rows of all, or of all."""
        lean = _some(self.lean, rows, k)
        if self.anchor is not None:
            lean = torch.addcmul(_some(self.said, rows, k), lean, self.kept[:k])
        if not self.learnt:
            return lean.clone() if rows is None and self.anchor is None else lean  # it will be changed in place
        return torch.baddbmm(lean, _some(self.gram, rows, k), self.held[:k])

    def learn(self, rows: Tensor | None, k: int, slope: Tensor, alpha: float) -> None:
        """A step along the slopes (k, b, outputs) of what was said; alpha is minus its length."""
        self.learnt, held = True, self.held[:k]
        if self.anchor is not None:
            held.mul_(self.leave[:k])
            self.kept[:k].mul_(self.leave[:k])
            slope = slope * self.length[:k]
        if rows is None:
            held.add_(slope, alpha=alpha)
        else:
            held.view(-1, held.shape[2]).index_add_(0, rows, slope.reshape(-1, held.shape[2]), alpha=alpha)

    def write(self) -> None:
        """Put the trained layers where they started from."""
        start, gone = self.start, 1 - self.kept
        if self.anchor is not None:
            start.matrix.lerp_(self.anchor.matrix, gone)
        start.matrix.baddbmm_(self.held.transpose(1, 2), self.x)
        if start.bias is not None:
            if self.anchor is not None and self.anchor.bias is not None:
                start.bias.lerp_(self.anchor.bias, gone)
            start.bias.add_(self.held.sum(1, keepdim=True))


def _some(table: Tensor, rows: Tensor | None, k: int) -> Tensor:
    """(G, n, m) -> (k, b, m)."""
    if rows is None:
        return table[:k]
    return table.flatten(0, 1).index_select(0, rows).view(k, -1, table.shape[2])
