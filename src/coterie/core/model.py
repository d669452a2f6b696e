"""A model is one flat vector: nn.Module <-> (P,) tensor of trainable parameters, then buffers.

Means, distances and cosines of models are then one line each, and BatchNorm's running statistics
travel with the weights; only the trainable part is stepped, pulled or decayed. Frozen parameters are not in the vector:
they are part of what the network is (see `model_layout`). Integer buffers (BatchNorm's batch counter) are not part of a
model and start at their initial value on every visit.
The weights of convolutions are stored with their channels last, the fastest layout on a CPU.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from coterie.core.adapters import Adapters, Train, as_train, prepare
from coterie.core.compute import HOST, Compute
from coterie.core.constructors import explained
from coterie.core.errors import CoterieError
from coterie.core.model_layout import Layout, joined, layout_of
from coterie.core.model_parts import Part, Section, inside, layers_of_part, positions
from coterie.core.objective import AnyLoss, Loss, as_loss, loss_name
from coterie.core.replica import Replica
from coterie.core.seeds import draw_seed
from coterie.core.types import Kind

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
