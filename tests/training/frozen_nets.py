"""A network whose frozen body a test can change: as where two machines have different versions of it."""

from __future__ import annotations

import torch
from torch import nn

body = [1.0]  # what the frozen layer is filled with


class Net(nn.Sequential):
    """Six inputs, a frozen layer, three outputs."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        first = self.get_submodule("0")
        with torch.no_grad():
            for i, p in enumerate(first.parameters()):
                p.copy_(torch.linspace(-body[0], body[0], p.numel()).reshape(p.shape) * (i + 1))
        first.requires_grad_(False)
