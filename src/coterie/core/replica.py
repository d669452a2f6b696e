"""A live network to compute with: its parameters and buffers are views of one vector, on the CPU or an accelerator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from coterie.core.compute import CPU, HOST, Compute
from coterie.core.errors import CoterieError
from coterie.core.model_layout import views
from coterie.core.model_parts import Section, inside
from coterie.core.objective import AnyLoss

if TYPE_CHECKING:
    from coterie.core.model import Model

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm)
ON_DEVICE = 16  # times as many samples are evaluated at once on an accelerator


def channels_last(x: Tensor) -> Tensor:
    """Images (n, c, h, w) in channels-last layout, the fastest on a CPU; anything else contiguous."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()


class Replica:
    """A network whose parameters and buffers are views of one vector `theta`; `grad` has room for its gradient."""

    def __init__(self, model: Model, compute: Compute = HOST) -> None:
        self._low = compute.low_precision
        # A copy, so that nothing a visit does to the network can reach the blueprint or another replica. What is frozen
        # is shared on the CPU: nothing changes it, and it may be most of a large network.
        layout = model.layout
        shared = {id(t): t for t in layout.outside(model.blueprint)} if compute.device == HOST.device else {}
        self.network = copy.deepcopy(model.blueprint, dict[int, object](shared)).to(compute.device)
        self.loss: AnyLoss = model.loss
        tensors = layout.vector(self.network)
        dtypes = {t.dtype for t in tensors}
        if len(dtypes) != 1:
            raise CoterieError(
                f"model: parameters of several types {sorted(map(str, dtypes))}; use one", code="model-invalid"
            )
        self.theta = torch.empty(model.size, dtype=tensors[0].dtype, device=compute.device)
        self.device = self.theta.device
        self.grad = torch.zeros(model.parameters, dtype=tensors[0].dtype, device=self.device)
        self.weights = self.theta[: model.parameters]
        # The parameters, with views of their values and gradients.
        self.trained = [p for p in self.network.parameters() if p.requires_grad]
        self.values = views(self.theta, tensors)
        self.slopes = views(self.grad, self.trained)
        self._still = [self.network.get_submodule(name) for name in layout.still]
        self._layout = layout
        self._sections: dict[Section, Tensor] = {}  # which entries of the vector belong to each
        self._asked: Sequence[int] = range(len(self.trained))  # the parameters whose gradient is computed
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

    def section(self, section: Section) -> Tensor:
        """Which entries of the vector (P,) belong to a section of the network."""
        if section not in self._sections:
            self._sections[section] = inside(self.network, self._layout, section).to(self.device)
        return self._sections[section]

    def training(self, only: Tensor | None = None) -> nn.Module:
        """The network in training mode; statistics that are frozen stay as they are.

        only: which entries of the vector (P,) train. The statistics of the others stay as they are too, and no gradient
        is computed for them (zeros).
        """
        self.network.train()
        self._asked = range(len(self.trained))
        still = list(self._still)
        if only is not None:
            sizes = [t.numel() for t in self._layout.vector(self.network)]
            trains = [bool(part.any()) for part in only.split(sizes)]
            self._asked = [number for number in self._asked if trains[number]]
            owners = zip(self._layout.statistics, trains[len(self.trained) :], strict=True)
            still += [self.network.get_submodule(name.rpartition(".")[0]) for name, moves in owners if not moves]
        for module in still:
            module.eval()
        return self.network

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
        asked = [self.trained[number] for number in self._asked]
        slopes = torch.autograd.grad(loss, asked, allow_unused=True) if asked else ()
        found = dict(zip(self._asked, slopes, strict=True))
        return [torch.zeros_like(p) if (g := found.get(i)) is None else g for i, p in enumerate(self.trained)]

    @torch.inference_mode()
    def logits(self, x: Tensor, batch: int | None = None) -> Tensor:
        """The network's output for x, in evaluation mode."""
        return self._by_batch(x, batch, self.outputs)

    @torch.inference_mode()
    def features(self, x: Tensor) -> Tensor:
        """The latent features (n, d) of x, in evaluation mode: what the last linear layer gets, or, without one, the
        network's output."""
        linear = [m for m in self.network.modules() if isinstance(m, nn.Linear)]
        if not linear:
            return self.logits(x).flatten(1)
        seen: list[Tensor] = []
        hook = linear[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))

        def latent(part: Tensor) -> Tensor:
            self.network(part)
            found = seen[-1].reshape(len(part), -1)
            seen.clear()
            return found

        try:
            return self._by_batch(x, None, latent)
        finally:
            hook.remove()

    def _by_batch(self, x: Tensor, batch: int | None, outputs: Callable[[Tensor], Tensor]) -> Tensor:
        # The output of convolutions is much larger than their input: batches that fit into the cache are the fastest.
        # An accelerator is fastest with large ones.
        batch = batch or (64 if x.ndim == 4 and self._images else 1024) * (1 if self.device == CPU else ON_DEVICE)
        batch = -(-batch // self.mixes) * self.mixes if self.mixes else batch
        self.network.eval()
        x = channels_last(x)
        if len(x) <= batch:
            return outputs(x)
        return torch.cat([outputs(part) for part in x.split(batch)])
