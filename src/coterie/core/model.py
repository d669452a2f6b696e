"""A model is one flat vector: nn.Module <-> (P,) tensor of trainable parameters, then frozen ones and buffers.

Means, distances and cosines of models are then one line each, and BatchNorm's running statistics
travel with the weights; only the trainable part is stepped, pulled or decayed. Integer buffers
(BatchNorm's batch counter) are not part of a model and start at their initial value on every visit.
The weights of convolutions are stored with their channels last, the fastest layout on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from coterie.core.compute import CPU, HOST, Compute
from coterie.core.constructors import explained
from coterie.core.errors import CoterieError
from coterie.core.model_parts import Part, positions
from coterie.core.seeds import draw_seed
from coterie.core.types import Kind

Loss: TypeAlias = Literal["cross_entropy", "mse"]
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm)
ON_DEVICE = 16  # times as many samples are evaluated at once on an accelerator
LAZY = (UninitializedParameter, UninitializedBuffer)


def channels_last(x: Tensor) -> Tensor:
    """Images (n, c, h, w) in channels-last layout, the fastest on a CPU; anything else contiguous."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


class Shaped(Protocol):
    """What a model must fit: a federation's data, or what clients say of theirs."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...

    @property
    def outputs(self) -> int: ...

    @property
    def kind(self) -> Kind: ...


def loss_of(federation: Shaped) -> Loss:
    """The loss that fits the labels."""
    return "cross_entropy" if federation.kind == "classification" else "mse"


def sample_losses(logits: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """The loss of every sample (n,)."""
    if loss == "cross_entropy":
        return functional.cross_entropy(logits, y, reduction="none")
    return (logits.reshape(len(y), -1) - y.reshape(len(y), -1)).square().mean(1)


@explained
@dataclass(frozen=True)
class Model:
    """What is trained: how to build the network, and the loss it is trained with."""

    build: Callable[[], nn.Module]
    loss: Loss = "cross_entropy"

    @staticmethod
    def of(network: Model | nn.Module | Callable[[], nn.Module], loss: Loss = "cross_entropy") -> Model:
        """From a function that builds the network (a class will do) or from an instance.

        An instance serves as a blueprint: its weights are drawn again from the run's seed, through the
        `reset_parameters` of its layers.
        """
        if isinstance(network, Model):
            return network
        if isinstance(network, nn.Module):
            return Model(partial(_redraw, network), loss)
        if callable(network):
            return Model(network, loss)
        raise CoterieError(
            f"model: expected an nn.Module or a function that returns one, got {network!r}", code="model-invalid"
        )

    @cached_property
    def blueprint(self) -> nn.Module:
        """One instance to read shapes from; never trained."""
        with torch.random.fork_rng(devices=[]):
            try:
                network = self.build()
            except CoterieError:
                raise
            except Exception as error:  # a user's network may raise anything while it is built
                what = f"{type(error).__name__}: {error}"
                raise CoterieError(f"model: the network cannot be built: {what}", code="model-failed") from error
        if not isinstance(network, nn.Module):
            raise CoterieError(
                f"model: the build function returned {type(network).__name__}, not an nn.Module", code="model-invalid"
            )
        if any(isinstance(t, LAZY) for t in (*network.parameters(), *network.buffers())):
            raise CoterieError(
                "model: a lazy layer has no size before its first samples; write the sizes out", code="model-invalid"
            )
        if not _trainable(network):
            raise CoterieError("model: the network has no trainable parameters", code="model-invalid")
        return network

    @cached_property
    def parameters(self) -> int:
        """How many of the vector's entries are trainable (the first ones; the rest are frozen or buffers)."""
        return sum(p.numel() for p in _trainable(self.blueprint))

    @cached_property
    def size(self) -> int:
        """The length P of the vector."""
        return sum(t.numel() for t in _tensors(self.blueprint))

    def init(self, rng: np.random.Generator) -> Tensor:
        """A fresh model (P,), drawn from the generator."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(draw_seed(rng))
            return flatten(self.build())

    def replica(self, compute: Compute = HOST) -> Replica:
        """A live network to compute with."""
        return Replica(self, compute)

    def part(self, part: Part) -> Tensor:
        """The positions in the vector of a part: all, classifier, head, last_weight, or names (see `parts`)."""
        return positions(self.blueprint, part)


class Replica:
    """A network whose parameters and buffers are views of one vector `theta`; `grad` has room for its gradient."""

    def __init__(self, model: Model, compute: Compute = HOST) -> None:
        self._low = compute.low_precision
        # A copy, so that nothing a visit does to the network can reach the blueprint or another replica.
        self.network = copy.deepcopy(model.blueprint).to(compute.device)
        self.loss: Loss = model.loss
        tensors = _tensors(self.network)
        dtypes = {t.dtype for t in tensors}
        if len(dtypes) != 1:
            raise CoterieError(
                f"model: parameters of several types {sorted(map(str, dtypes))}; use one", code="model-invalid"
            )
        self.theta = torch.empty(model.size, dtype=tensors[0].dtype, device=compute.device)
        self.device = self.theta.device
        self.grad = torch.zeros(model.parameters, dtype=tensors[0].dtype, device=self.device)
        self.weights = self.theta[: model.parameters]
        self.trained = _trainable(self.network)  # the parameters, with views of their values and gradients
        self.values = _views(self.theta, tensors)
        self.slopes = _views(self.grad, self.trained)
        for t, view in zip(tensors, self.values, strict=True):
            t.data = view
        self.values = self.values[: len(self.trained)]
        self._norms = [m for m in self.network.modules() if isinstance(m, NORMS)]
        self._least: dict[tuple[int, ...], int] = {}  # by the shape of a sample
        # For batches of this size a prediction depends on the other samples, even in evaluation; 0 if it never does.
        self.mixes = max(int(getattr(m, "mixes_samples", 0)) for m in self.network.modules())
        self._images = any(isinstance(m, nn.Conv2d) for m in self.network.modules())
        self._counters = [b for b in self.network.buffers() if not b.is_floating_point()]
        self._counts = [b.clone() for b in self._counters]
        self._forward: Callable[[Tensor], Tensor] = torch.compile(self.network) if compute.compile else self.network

    def load(self, theta: Tensor) -> Replica:
        """Load this model."""
        if theta.shape != self.theta.shape:
            raise CoterieError(
                f"a model of {theta.numel()} numbers does not fit this network of {self.theta.numel()}",
                code="model-size",
            )
        self.theta.copy_(theta)
        for counter, count in zip(self._counters, self._counts, strict=True):
            counter.copy_(count)
        return self

    def least_batch(self, x: Tensor) -> int:
        """The fewest such samples that can be trained on at a time.

        Two, where a normalisation sees a single value of a sample's channel (or group): one value has no variance.
        """
        shape = tuple(x.shape[1:])
        if shape not in self._least:
            single = any(isinstance(m, nn.BatchNorm1d) for m in self._norms) or (1 in self._values_per_channel(x[:1]))
            self._least[shape] = 2 if single else 1
        return self._least[shape]

    def _values_per_channel(self, sample: Tensor) -> list[int]:
        """How many values of one sample each normalisation has for a channel, or group."""
        seen: list[int] = []

        def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            values = inputs[0]
            groups = module.num_groups if isinstance(module, nn.GroupNorm) else values.shape[1]
            seen.append(values[0].numel() // groups)

        hooks = [m.register_forward_pre_hook(look) for m in self._norms]
        try:
            # Two samples in evaluation: no layer fails, and nothing about the network or its random numbers changes.
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                _ = self.network.eval()(torch.cat([sample, sample])) if hooks else None
        finally:
            for hook in hooks:
                hook.remove()
        return seen

    @property
    def needs_scaling(self) -> bool:
        """Whether gradients may be too small for the precision that networks compute in."""
        return self._low == torch.float16

    def outputs(self, x: Tensor) -> Tensor:
        """What the network gives for x, in the mode that it is in; computed in low precision if that was asked for."""
        if self._low is None:
            return self._forward(x)
        with torch.autocast(self.device.type, self._low):
            return self._forward(x).to(self.theta.dtype)

    def gradient(self, loss: Tensor) -> list[Tensor]:
        """The gradient of a loss, parameter by parameter; a parameter that plays no part in it has none (zeros)."""
        found = torch.autograd.grad(loss, self.trained, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.trained, found, strict=True)]

    @torch.inference_mode()
    def logits(self, x: Tensor, batch: int | None = None) -> Tensor:
        """The network's output for x, in evaluation mode."""
        # The output of convolutions is much larger than their input: batches that fit into the cache are the fastest.
        # An accelerator is fastest with large ones.
        batch = batch or (64 if x.ndim == 4 and self._images else 1024) * (1 if self.device == CPU else ON_DEVICE)
        batch = -(-batch // self.mixes) * self.mixes if self.mixes else batch
        self.network.eval()
        x = channels_last(x)
        if len(x) <= batch:
            return self.outputs(x)
        return torch.cat([self.outputs(part) for part in x.split(batch)])


def layers_in_order(network: nn.Module) -> list[nn.Module] | None:
    """The layers of a network that is nothing but layers in a row; None if it has hooks."""
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in network.modules()):
        return None
    if type(network) is not nn.Sequential:
        return [network]
    return [module for child in network for module in layers_in_order(child) or ()]


def flatten(network: nn.Module) -> Tensor:
    """The network's vector (a copy)."""
    return torch.cat([_lying(t.detach()).reshape(-1) for t in _tensors(network)])


def _lying(t: Tensor) -> Tensor:
    """A tensor with its axes in the order of the vector."""
    return t.permute(0, 2, 3, 1) if t.ndim == 4 else t


def _views(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The position of each of these tensors in the vector."""
    views, start = [], 0
    for t in like:
        lying = vector[start : start + t.numel()].view(_lying(t).shape)
        views.append(lying.permute(0, 3, 1, 2) if t.ndim == 4 else lying)
        start += t.numel()
    return views


def _trainable(network: nn.Module) -> list[nn.Parameter]:
    return [p for p in network.parameters() if p.requires_grad]


def _tensors(network: nn.Module) -> list[Tensor]:
    frozen = [p for p in network.parameters() if not p.requires_grad]
    buffers = [b for b in network.buffers() if b.is_floating_point()]
    return [*_trainable(network), *frozen, *buffers]


def _redraw(instance: nn.Module) -> nn.Module:
    """A copy of the instance with newly drawn weights."""
    network = copy.deepcopy(instance)
    for name, module in network.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
        elif next(module.parameters(recurse=False), None) is not None:
            raise CoterieError(
                f"model: layer '{name or type(module).__name__}' has parameters but no reset_parameters(), so the "
                "instance cannot be initialised from the seed; pass a function that builds it: model=lambda: Net()",
                code="model-invalid",
            )
    return network
