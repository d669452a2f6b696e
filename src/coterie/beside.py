"""Several models' word on the same samples, side by side in one pass: for networks of common layers in a row.

The filters of all models become the filters of one convolution, and those of the next a convolution in as many groups;
linear layers are batched matrix products. Small networks leave a processor's lanes half empty, ten of them do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.model import Model, in_order

Stage: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # the models (G, P), what the stage before says -> what it says

SAMPLES = 1024  # of vectors in one pass
IMAGES = 32  # ... and of images or signals: what filters give is many times their input, and best stays in the cache


class Beside:
    """A network that can be looked at side by side."""

    def __init__(self, stages: Sequence[Stage], filters: bool) -> None:
        self._stages, self._filters = stages, filters

    @staticmethod
    def of(model: Model) -> Beside | None:
        """From layers in a row that are known here; None for any other network."""
        stages: list[Stage] = []
        start, flat, filtered = 0, False, False
        for module in in_order(model.blueprint) or ():
            kind = type(module)
            if isinstance(module, nn.Linear) and kind is nn.Linear:
                stages += [_linear(module, start)] if flat else [_vectors, _linear(module, start)]
                flat = True
            elif isinstance(module, nn.Conv1d | nn.Conv2d) and kind in (nn.Conv1d, nn.Conv2d):
                if flat or module.groups != 1 or module.padding_mode != "zeros":
                    return None
                stages.append(_convolution(module, start, first=not filtered))
                filtered = True
            elif isinstance(module, nn.MaxPool1d | nn.MaxPool2d) and kind in (nn.MaxPool1d, nn.MaxPool2d):
                if not filtered or flat or module.return_indices:
                    return None
                # The largest of what is positive is what is positive of the largest, and there are fewer of them.
                stages.insert(len(stages) - (stages[-1] is _relu), _pool(module))
            elif kind is nn.ReLU and (filtered or start):  # in place: of what a layer gave, never of the samples
                stages.append(_relu)
            elif isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1) and not flat:
                stages.append(_apart if filtered else _flatten)
                flat = True
            elif kind not in (nn.Identity, nn.Dropout):
                return None
            start += sum(p.numel() for p in module.parameters())
        trained = all(p.requires_grad for p in model.blueprint.parameters())
        return Beside(stages, filtered) if trained and flat and start == model.size else None

    def say(self, thetas: Tensor, x: Tensor) -> Tensor:
        """Logits (G, n, outputs) of all models for all samples."""
        parts = x.split(IMAGES if self._filters else SAMPLES)
        with torch.inference_mode():
            return torch.cat([self._say(thetas, part) for part in parts], 1)

    def _say(self, thetas: Tensor, x: Tensor) -> Tensor:
        for stage in self._stages:
            x = stage(thetas, x)
        return x


def _relu(_: Tensor, a: Tensor) -> Tensor:
    return a.relu_()


def _flatten(_: Tensor, a: Tensor) -> Tensor:
    return a.flatten(1)


def _apart(thetas: Tensor, a: Tensor) -> Tensor:
    """What the models' filters gave (n, G * channels, ...) -> (G, n, inputs)."""
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
        if len(shape) == 4:  # channels last, as they lie in the vector
            weight = part.reshape(many, shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)
        else:
            weight = part.reshape(many, *shape[1:])
        bias = None if module.bias is None else thetas[:, end : end + shape[0]].reshape(many)
        convolve = functional.conv2d if len(shape) == 4 else functional.conv1d
        groups = 1 if first else len(thetas)
        return convolve(a, weight, bias, module.stride, module.padding, module.dilation, groups)

    return stage


def _pool(module: nn.MaxPool1d | nn.MaxPool2d) -> Stage:
    return lambda _, a: module(a)
