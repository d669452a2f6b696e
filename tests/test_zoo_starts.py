"""How weights are drawn."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from coterie.zoo import MLP, LeNet, LinearModel


@pytest.mark.parametrize("build", [LinearModel(init="glorot"), MLP(init="glorot"), LeNet(init="glorot")])
def test_glorot_is_uniform_with_biases_of_zero(build: LinearModel | MLP | LeNet) -> None:
    torch.manual_seed(0)
    network = build((1, 28, 28), 10)
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fan = layer.weight.shape[0] * layer.weight[0, 0].numel() + layer.weight[0].numel()
            bound = math.sqrt(6 / fan)
            assert float(layer.weight.detach().abs().max()) <= bound + 1e-6
            assert float(layer.weight.detach().abs().max()) > 0.8 * bound
            assert layer.bias is not None
            assert not layer.bias.any()


def test_xavier_normal_is_for_linear_layers() -> None:
    torch.manual_seed(0)
    network = LeNet(init="xavier-normal")((1, 28, 28), 10)
    torch.manual_seed(0)
    plain = LeNet()((1, 28, 28), 10)
    wide = max((m for m in network.modules() if isinstance(m, nn.Linear)), key=lambda m: m.weight.numel())
    deviation = math.sqrt(2 / sum(wide.weight.shape))
    assert float(wide.weight.detach().std()) == pytest.approx(deviation, rel=0.05)
    first, unchanged = (next(n.parameters()) for n in (network, plain))
    assert torch.equal(first, unchanged)  # convolutions are as PyTorch draws them
    assert not torch.equal(wide.weight, next(m for m in plain.modules() if isinstance(m, nn.Linear)).weight)


def test_torchs_own_is_the_default() -> None:
    torch.manual_seed(0)
    found = MLP()((4,), 2)
    torch.manual_seed(0)
    assert torch.equal(next(found.parameters()), nn.Linear(4, 200).weight)
