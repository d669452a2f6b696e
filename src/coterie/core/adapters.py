"""What of a network is trained: all of it, its head, low-rank adapters, or parameters by name; the rest is frozen.

Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685: a frozen matrix W is used as
W + alpha/rank * up @ down, with `down` drawn at random and `up` zero, so that training starts at the frozen network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from coterie.core.constructors import dataclass
from coterie.core.errors import CoterieError, suggest
from coterie.core.model_parts import layers_of_part
from coterie.core.types import STRICT

# all: what the network itself marks as trainable. head: the last linear layer. classifier: all linear layers.
# adapters: low-rank adapters. Or patterns of names of parameters or modules: ("encoder.layer.5", "*.bias").
Train: TypeAlias = Literal["all", "head", "classifier", "adapters"] | tuple[str, ...]
WORDS = ("all", "head", "classifier", "adapters")


@dataclass(frozen=True, config=STRICT)
class Adapters:
    """Low-rank adapters for `train: adapters`: which linear layers have one, and how large."""

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0  # an adapter's output is multiplied by alpha / rank
    layers: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)  # patterns of names of linear layers
    head: bool = True  # the last linear layer is trained as a whole, without an adapter
    through: Literal["coterie", "peft"] = "coterie"  # peft: its layers, for what is not nn.Linear, such as GPT-2's


class AdaptedLinear(nn.Linear):
    """A frozen linear layer with a low-rank adapter."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        nn.Module.__init__(self)  # the layer's own weights are used, none are drawn
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.frozen, self.scale = layer.weight, alpha / rank
        self.register_parameter("bias", layer.bias)
        self.down = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.up = nn.Parameter(layer.weight.new_empty(layer.out_features, rank))
        self.reset_parameters()
        self.train(layer.training)

    def reset_parameters(self) -> None:
        """Draw the adapter: it changes nothing at first."""
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        nn.init.zeros_(self.up)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The matrix that the layer amounts to: attention layers of torch use it without calling the layer."""
        return self.frozen + self.scale * (self.up @ self.down)

    def forward(self, input: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        low = functional.linear(functional.linear(input, self.down), self.up)
        return functional.linear(input, self.frozen, self.bias) + self.scale * low

    def extra_repr(self) -> str:
        """As a linear layer, with its rank and scale: both are part of what the network is."""
        return f"{super().extra_repr()}, rank={len(self.down)}, scale={self.scale:g}"

    def merged(self) -> nn.Linear:
        """The same as a plain linear layer."""
        layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        with torch.no_grad():
            layer.weight = nn.Parameter(self.weight.detach().clone(), requires_grad=False)
            if self.bias is not None:
                layer.bias = nn.Parameter(self.bias.detach().clone(), requires_grad=False)
        return layer.train(self.training)


def as_train(train: str | tuple[str, ...] | list[str]) -> Train:
    """A word, or patterns of names; a single pattern may be given without a list."""
    if isinstance(train, str):
        return train if train in WORDS else (train,)  # type: ignore[return-value]
    if not isinstance(train, tuple | list) or not train or not all(isinstance(one, str) for one in train):
        raise CoterieError(
            f"train: {train!r}: expected {', '.join(WORDS)} or names of parameters, such as [encoder.layer.5, head]",
            code="config-invalid-value",
        )
    return tuple(train)


def prepare(network: nn.Module, train: Train, adapters: Adapters) -> nn.Module:
    """Freeze what is not trained, and add adapters if they are asked for; changes the network and returns it."""
    if train == "all":
        return network
    if train != "adapters":
        _train_only(network, _selected(network, train))
        return network
    head = layers_of_part(network, "head", trained=False) if adapters.head else set()
    _train_only(network, head)
    if adapters.through == "peft":
        return _through_peft(network, adapters, head)
    layers = [network.get_submodule(name) for name in _adapted_layers(network, adapters, head)]
    new: dict[nn.Module, nn.Module] = {
        m: AdaptedLinear(m, adapters.rank, adapters.alpha) for m in layers if isinstance(m, nn.Linear)
    }
    return _replaced(network, new)


def merge(network: nn.Module) -> nn.Module:
    """The network with every adapter merged into its layer; changes the network and returns it."""
    return _replaced(network, {m: m.merged() for m in network.modules() if isinstance(m, AdaptedLinear)})


def _replaced(network: nn.Module, new: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """The network with other modules in these places, everywhere: one layer may be used in several."""
    for module in list(network.modules()):
        for name, child in list(module._modules.items()):
            if child is not None and child in new:
                setattr(module, name, new[child])
    return new.get(network, network)


def _train_only(network: nn.Module, wanted: set[int]) -> None:
    for p in network.parameters():
        p.requires_grad_(id(p) in wanted and p.is_floating_point())


def _selected(network: nn.Module, train: Literal["head", "classifier"] | tuple[str, ...]) -> set[int]:
    if isinstance(train, str):
        return layers_of_part(network, train, trained=False)
    names = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    known = dict(network.named_parameters(remove_duplicate=False))
    found: set[int] = set()
    for pattern in train:
        these = [name for name in names if _matches(name, pattern)]
        if not these:
            raise CoterieError(
                f"train: '{pattern}' fits no parameter or module of this network.{suggest(pattern, names)}",
                code="model-part-unknown",
            )
        found |= {id(known[name]) for name in these}
    return found


def _matches(name: str, pattern: str) -> bool:
    """Whether a parameter, or a module that it is in, has such a name."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:end]), pattern) for end in range(1, len(parts) + 1))


def _adapted_layers(network: nn.Module, adapters: Adapters, head: set[int]) -> list[str]:
    """The names of the linear layers that get an adapter."""
    linear = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear)
        and not isinstance(module, AdaptedLinear)
        and not any(id(p) in head for p in module.parameters(recurse=False))
    ]
    for pattern in adapters.layers:
        if not any(_matches(name, pattern) for name in linear):
            some = suggest(pattern, linear) if linear else " It has none besides its head."
            raise CoterieError(
                f"adapters.layers: '{pattern}' fits no linear layer of this network.{some}", code="model-part-unknown"
            )
    return [name for name in linear if any(_matches(name, pattern) for pattern in adapters.layers)]


def _through_peft(network: nn.Module, adapters: Adapters, head: set[int]) -> nn.Module:
    """The adapters of the package peft, which knows more kinds of layers."""
    try:
        import peft
    except ImportError:
        raise CoterieError(
            "adapters.through: peft is not installed; pip install 'coterie[transformers]'", code="extra-missing"
        ) from None
    wanted: str | list[str] = "all-linear"
    if adapters.layers != ("*",):
        names = [name for name, _ in network.named_modules() if name]
        wanted = [name for name in names if any(_matches(name, pattern) for pattern in adapters.layers)]
        if not wanted:
            raise CoterieError(
                f"adapters.layers: {', '.join(adapters.layers)} fits no module of this network."
                f"{suggest(adapters.layers[0], names)}",
                code="model-part-unknown",
            )
    leave = [
        name for name, m in network.named_modules() if name and any(id(p) in head for p in m.parameters(recurse=False))
    ]
    config = peft.LoraConfig(
        r=adapters.rank,
        lora_alpha=adapters.alpha,  # type: ignore[arg-type]  # any number will do
        target_modules=wanted,
        exclude_modules=leave or None,
    )
    made: nn.Module = peft.inject_adapter_in_model(config, network)
    for p in made.parameters():
        if id(p) in head:
            p.requires_grad_(True)
    return made
