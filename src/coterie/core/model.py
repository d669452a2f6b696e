"""A network as one vector: built from a seed, loaded with numbers, trained in part, together with others."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from coterie.core.compute import CPU, HOST, Compute
from coterie.core.errors import CoterieError
from coterie.core.objective import AnyLoss, Loss, as_loss, loss_name
from coterie.core.parts import (
    Adapters,
    Layout,
    Part,
    Section,
    Train,
    as_train,
    inside,
    joined,
    layers_of_part,
    layout_of,
    positions,
    prepare,
    views,
)
from coterie.core.seeds import draw_seed
from coterie.core.settings import Kind, explained

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


LAZY = (UninitializedParameter, UninitializedBuffer)
FROZEN_SEED = 0  # of frozen parameters that a network draws: they belong to the network, not to a run


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


@explained
@dataclass(frozen=True)
class Model:
    """What is trained: how to build the network, the loss it is trained with, and which part of the network is trained.

    loss: cross_entropy, mse, or another objective (see `core.objective`): a function (outputs, y) -> losses (n,), an
    object with `losses` and `scores`, or a name: multilabel, mae, tokens.
    train: all (what requires a gradient), head, classifier, adapters, or names of parameters or modules with wildcards.
    adapters: which layers have one and how large, for train="adapters".
    """

    build: Callable[[], nn.Module]
    loss: AnyLoss = "cross_entropy"
    train: Train = "all"
    adapters: Adapters = field(default_factory=Adapters)

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", as_train(self.train))
        object.__setattr__(self, "loss", as_loss(self.loss))

    @property
    def loss_name(self) -> str:
        """How its loss is called in files and messages."""
        return loss_name(self.loss)

    @staticmethod
    def of(
        network: Model | nn.Module | Callable[[], nn.Module],
        loss: AnyLoss = "cross_entropy",
        train: Train = "all",
        adapters: Adapters | None = None,
    ) -> Model:
        """From a function that builds the network (a class will do) or from an instance.

        An instance serves as a blueprint: its weights are drawn again from the run's seed, through the
        `reset_parameters` of its layers. Frozen parameters keep their values. With `train`, only the head is drawn
        again: the rest of the instance is what training starts from.
        """
        if isinstance(network, Model):
            return network
        own = adapters or Adapters()
        if isinstance(network, nn.Module):
            return Model(partial(_redraw, network, train != "all"), loss, train, own)
        if callable(network):
            return Model(network, loss, train, own)
        raise CoterieError(
            f"model: expected an nn.Module or a function that returns one, got {network!r}", code="model-invalid"
        )

    @cached_property
    def blueprint(self) -> nn.Module:
        """One instance to read shapes and frozen parameters from; never trained."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(FROZEN_SEED)
            try:
                network = self.build()
            except CoterieError:
                raise
            except Exception as error:  # a user's network may raise anything while it is built
                what = f"{type(error).__name__}: {error}"
                raise CoterieError(f"model: the network cannot be built: {what}", code="model-failed") from error
            if not isinstance(network, nn.Module):
                raise CoterieError(
                    f"model: the build function returned {type(network).__name__}, not an nn.Module",
                    code="model-invalid",
                )
            if any(isinstance(t, LAZY) for t in (*network.parameters(), *network.buffers())):
                raise CoterieError(
                    "model: a lazy layer has no size before its first samples; write the sizes out",
                    code="model-invalid",
                )
            network = prepare(network, self.train, self.adapters)
        if not any(p.requires_grad for p in network.parameters()):
            raise CoterieError("model: the network has no trainable parameters", code="model-invalid")
        return network

    @cached_property
    def layout(self) -> Layout:
        """Which tensors are in the vector, and which are frozen."""
        return layout_of(self.blueprint, self.train != "all")

    @cached_property
    def parameters(self) -> int:
        """How many of the vector's entries are trainable (the first ones; the rest are statistics)."""
        return sum(p.numel() for p in self.blueprint.parameters() if p.requires_grad)

    @cached_property
    def size(self) -> int:
        """The length P of the vector."""
        return sum(t.numel() for t in self.layout.vector(self.blueprint))

    @cached_property
    def frozen_size(self) -> int:
        """How many numbers of the network are frozen: they are not in the vector."""
        return sum(t.numel() for t in self.layout.outside(self.blueprint))

    @cached_property
    def frozen(self) -> str:
        """The hash of what is frozen; empty where nothing is."""
        return self.layout.fingerprint(self.blueprint)

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers in the vector."""
        return self.layout.vector(self.blueprint)[0].dtype

    @property
    def description(self) -> str:
        """In one line: its size, its loss, its layers and, where a part of it is frozen, the hash of that."""
        network = f"network {zlib.crc32(repr(self.blueprint).encode()):08x}"
        frozen = f", frozen {self.frozen[:16]}" if self.frozen else ""
        return f"{self.size} numbers, {self.loss_name}, {network}{frozen}"

    def init(self, rng: np.random.Generator) -> Tensor:
        """A fresh model (P,), drawn from the generator."""
        layout = self.layout
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(draw_seed(rng))
            return joined(layout.vector(prepare(self.build(), self.train, self.adapters)))

    def vector(self, network: nn.Module) -> Tensor:
        """The vector (P,) of a network that this model built (a copy)."""
        return joined(self.layout.vector(network))

    def with_frozen(self, values: Tensor) -> Model:
        """The same model with these values frozen (bytes), to compute with."""
        network, found = copy.deepcopy(self.blueprint), replace(self)
        self.layout.set_frozen(network, values)
        vars(found)["blueprint"] = network  # where `cached_property` looks first
        return found

    def replica(self, compute: Compute = HOST) -> Replica:
        """A live network to compute with."""
        return Replica(self, compute)

    def part(self, part: Part) -> Tensor:
        """The positions in the vector of a part: all, classifier, head, last_weight, or names (see `parts`)."""
        return positions(self.blueprint, part)

    def section(self, section: Section) -> Tensor:
        """Which entries of the vector (P,) belong to a section: head, classifier, norms, or names (see `parts`)."""
        return inside(self.blueprint, self.layout, section)


def layers_in_order(network: nn.Module) -> list[nn.Module] | None:
    """The layers of a network that is nothing but layers in a row; None if it has hooks."""
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in network.modules()):
        return None
    if type(network) is not nn.Sequential:
        return [network]
    return [module for child in network for module in layers_in_order(child) or ()]


def flatten(network: nn.Module) -> Tensor:
    """The vector of a network of which everything is trained that requires a gradient (a copy)."""
    return joined(layout_of(network).vector(network))


def _redraw(instance: nn.Module, head_only: bool) -> nn.Module:
    """A copy of the instance with newly drawn weights: those of its head alone, or all that are not frozen."""
    network = copy.deepcopy(instance)
    kept = {id(p) for p in network.parameters() if not p.requires_grad}
    if head_only:
        kept = {id(p) for p in network.parameters()} - layers_of_part(network, "head", trained=False)
    for name, module in network.named_modules():
        own = [id(p) for p in module.parameters(recurse=False)]
        reset = getattr(module, "reset_parameters", None)
        if (own or head_only) and kept.issuperset(own):
            continue
        if callable(reset):
            reset()
        elif own:
            raise CoterieError(
                f"model: layer '{name or type(module).__name__}' has parameters but no reset_parameters(), so the "
                "instance cannot be initialised from the seed; pass a function that builds it: model=lambda: Net()",
                code="model-invalid",
            )
    return network


@dataclass(frozen=True)
class SharedModel(Model):
    """The same network; its vectors leave out a section."""

    without: Section = ()

    @staticmethod
    def of_rest(model: Model, section: Section) -> SharedModel:
        """What is left of a model."""
        rest = SharedModel(model.build, model.loss, model.train, model.adapters, section)
        vars(rest)["blueprint"] = model.blueprint  # where `cached_property` looks first: what is frozen in it stays
        return rest

    @cached_property
    def shared(self) -> Tensor:
        """Which entries of the whole vector are shared."""
        return ~self.section(self.without)

    @cached_property
    def size(self) -> int:
        """The length of the shared vector."""
        return int(self.shared.sum())

    @cached_property
    def parameters(self) -> int:
        """How many of its entries are trainable."""
        return int(self.shared[: Model(self.build, self.loss, self.train, self.adapters).parameters].sum())

    def init(self, rng: np.random.Generator) -> Tensor:
        """The shared part of a fresh model."""
        return super().init(rng)[self.shared]

    def part(self, part: Part) -> Tensor:
        """The positions in the shared vector of a part, as far as it is shared; of all that is, where none of it is."""
        place = torch.where(self.shared, self.shared.cumsum(0) - 1, -1)
        found = place[super().part(part)]
        return found[found >= 0] if bool((found >= 0).any()) else torch.arange(self.parameters)


def combined(outputs: Tensor, mixture: Tensor | None, average: bool, loss: AnyLoss) -> Tensor:
    """One prediction (n, outputs) of several (models, n, outputs): logits, or log-probabilities of a mixture."""
    if mixture is None:
        return outputs.mean(0) if average else outputs.sum(0)
    weights = mixture.to(outputs.dtype).view(-1, *[1] * (outputs.ndim - 1))
    if loss != "cross_entropy":
        return (outputs * weights).sum(0)
    # In the log domain, where the cross-entropy of a mixture of probabilities is its own.
    return torch.logsumexp(torch.log_softmax(outputs, -1) + weights.log(), 0)


def as_network(replica: Replica, thetas: Sequence[Tensor], mixture: Tensor | None, average: bool) -> nn.Module:
    """The network of a model, or of several together: copies of their own, in evaluation mode."""
    networks = [copy.deepcopy(replica.load(theta).network).eval() for theta in thetas]
    if len(networks) == 1 and mixture is None:
        return networks[0]
    return Ensemble(networks, None if mixture is None else mixture.clone(), average, replica.loss).eval()


class Ensemble(nn.Module):
    """Networks that predict together, as a network to save or export."""

    mixture: Tensor | None

    def __init__(self, networks: Sequence[nn.Module], mixture: Tensor | None, average: bool, loss: AnyLoss) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.register_buffer("mixture", mixture)
        self.average, self.loss = average, loss

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, outputs); log-probabilities where it is a mixture; values for regression."""
        return combined(torch.stack([network(x) for network in self.networks]), self.mixture, self.average, self.loss)
