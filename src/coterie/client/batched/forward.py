"""The logits of several models for the same samples in one pass, for networks of common layers in a row.

The filters of all models become the filters of one convolution, and those of the next layer a convolution in as many
groups; linear layers are batched matrix products. A small network uses a processor's vector units poorly, ten together
use them well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.core.model import ON_DEVICE, Model, layers_in_order

Stage: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # the models (G, P), the stage's input -> its output

SAMPLES = 1024  # vectors in one pass
IMAGES = 32  # images or signals in one pass: the output of filters is many times their input, and should stay in cache


class StackedModels:
    """A network as stages that compute many models at once; see `stack_models`."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.position = 0  # in the model's vector: where the next layer's numbers begin
        self.flat = False  # whether the stages so far give vectors
        self.filtered = False  # whether there was a convolution

    def logits(self, thetas: Tensor, x: Tensor) -> Tensor:
        """Logits (G, n, outputs) of all models (G, P) for all samples."""
        parts = x.split((IMAGES if self.filtered else SAMPLES) * (1 if x.device.type == "cpu" else ON_DEVICE))
        with torch.inference_mode():
            return torch.cat([self._logits(thetas, part) for part in parts], 1)

    def _logits(self, thetas: Tensor, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(thetas, x)
        return x

    def append(self, module: nn.Module) -> bool:
        """Add a layer; returns False if it is not supported."""
        add = _SUPPORTED.get(type(module))
        supported = add is not None and add(self, module)
        self.position += sum(p.numel() for p in module.parameters())
        return supported

    def linear(self, module: nn.Linear) -> bool:
        """Add a linear layer."""
        self.stages += [_linear(module, self.position)] if self.flat else [_vectors, _linear(module, self.position)]
        self.flat = True
        return True

    def convolution(self, module: nn.Conv1d | nn.Conv2d) -> bool:
        """Add a convolution."""
        if self.flat or module.groups != 1 or module.padding_mode != "zeros":
            return False
        self.stages.append(_convolution(module, self.position, first=not self.filtered))
        self.filtered = True
        return True

    def pool(self, module: nn.MaxPool1d | nn.MaxPool2d) -> bool:
        """Add a max-pooling after a convolution."""
        if not self.filtered or self.flat or module.return_indices:
            return False
        # relu(max(a)) = max(relu(a)), and there are fewer numbers after pooling: pool first.
        self.stages.insert(len(self.stages) - (self.stages[-1] is _relu), lambda _, a: module(a))
        return True

    def relu(self, _: nn.ReLU) -> bool:
        """Add a ReLU. It works in place: on the output of a layer, never on the samples."""
        self.stages.append(_relu)
        return self.filtered or self.position > 0

    def flatten(self, module: nn.Flatten) -> bool:
        """Add a flattening."""
        if self.flat or (module.start_dim, module.end_dim) != (1, -1):
            return False
        self.stages.append(_split_models if self.filtered else _flatten)
        self.flat = True
        return True

    def identity(self, _: nn.Module) -> bool:
        """Add a layer that does nothing in evaluation."""
        return True


# Exactly these types: a subclass may compute something else.
_SUPPORTED: dict[type[nn.Module], Callable[..., bool]] = {
    nn.Linear: StackedModels.linear,
    nn.Conv1d: StackedModels.convolution,
    nn.Conv2d: StackedModels.convolution,
    nn.MaxPool1d: StackedModels.pool,
    nn.MaxPool2d: StackedModels.pool,
    nn.ReLU: StackedModels.relu,
    nn.Flatten: StackedModels.flatten,
    nn.Identity: StackedModels.identity,
    nn.Dropout: StackedModels.identity,
}


def stack_models(model: Model) -> StackedModels | None:
    """For a network of supported layers in a row, all of them trained; None for any other."""
    stacked = StackedModels()
    if not all(stacked.append(module) for module in layers_in_order(model.blueprint) or ()):
        return None
    trained = all(p.requires_grad for p in model.blueprint.parameters())
    return stacked if trained and stacked.flat and stacked.position == model.size else None


def _relu(_: Tensor, a: Tensor) -> Tensor:
    return a.relu_()


def _flatten(_: Tensor, a: Tensor) -> Tensor:
    return a.flatten(1)


def _split_models(thetas: Tensor, a: Tensor) -> Tensor:
    """The output of all models' filters (n, G * channels, ...) -> (G, n, inputs)."""
    return a.reshape(len(a), len(thetas), -1).transpose(0, 1)


def _vectors(_: Tensor, a: Tensor) -> Tensor:
    if a.ndim != 2:
        raise ValueError(f"expected vectors, got samples of shape {tuple(a.shape[1:])}")
    return a


def _linear(module: nn.Linear, start: int) -> Stage:
    inputs, outputs = module.in_features, module.out_features
    end = start + inputs * outputs

    def stage(thetas: Tensor, a: Tensor) -> Tensor:
        matrix = thetas[:, start:end].view(len(thetas), outputs, inputs).transpose(1, 2)
        if a.ndim == 2:  # the samples themselves
            a = a.expand(len(thetas), *a.shape)
        if module.bias is None:
            return torch.bmm(a, matrix)
        return torch.baddbmm(thetas[:, None, end : end + outputs], a, matrix)

    return stage


def _convolution(module: nn.Conv1d | nn.Conv2d, start: int, first: bool) -> Stage:
    shape = module.weight.shape
    end = start + module.weight.numel()

    def stage(thetas: Tensor, a: Tensor) -> Tensor:
        part, many = thetas[:, start:end], len(thetas) * shape[0]
        if len(shape) == 4:  # channels last, as in the vector
            weight = part.reshape(many, shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
        else:
            weight = part.reshape(many, *shape[1:])
        bias = None if module.bias is None else thetas[:, end : end + shape[0]].reshape(many)
        convolve = functional.conv2d if len(shape) == 4 else functional.conv1d
        groups = 1 if first else len(thetas)
        return convolve(a, weight, bias, module.stride, module.padding, module.dilation, groups)

    return stage
