"""What of a network is trained: its parameters as one vector, sections of it by name, adapters."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeAlias

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from coterie.core.errors import CoterieError, suggest
from coterie.core.settings import STRICT
from coterie.core.settings import dataclass as validated


@dataclass(frozen=True)
class Layout:
    """The names of a network's floating-point tensors: in the vector, in this order, or frozen."""

    trained: tuple[str, ...]
    statistics: tuple[str, ...]  # buffers that training changes, such as BatchNorm's running means
    frozen: tuple[str, ...]  # parameters and buffers that nothing changes
    still: tuple[str, ...] = ()  # modules with frozen statistics: in evaluation mode while the others train

    def vector(self, network: nn.Module) -> list[Tensor]:
        """The tensors of the vector, in its order."""
        return _in_order(network, (*self.trained, *self.statistics))

    def outside(self, network: nn.Module) -> list[Tensor]:
        """The frozen tensors."""
        return _in_order(network, self.frozen)

    def fingerprint(self, network: nn.Module) -> str:
        """The hash of names, types, shapes and values of what is frozen; empty where nothing is."""
        if not self.frozen:
            return ""
        found = hashlib.sha256()
        for name, t in zip(self.frozen, self.outside(network), strict=True):
            found.update(f"{name} {t.dtype} {tuple(t.shape)}\n".encode())
            found.update(bits(t).numpy().data)
        return found.hexdigest()

    def frozen_bytes(self, network: nn.Module) -> Tensor:
        """The values of what is frozen, end to end."""
        return torch.cat([bits(t) for t in self.outside(network)])

    def set_frozen(self, network: nn.Module, values: Tensor) -> None:
        """Set what is frozen to these bytes."""
        tensors = self.outside(network)
        if sum(t.nbytes for t in tensors) != len(values):
            raise CoterieError(
                f"the frozen part of a network has {sum(t.nbytes for t in tensors)} bytes, this one {len(values)}",
                code="model-size",
            )
        start = 0
        with torch.no_grad():
            for t in tensors:
                part = values[start : start + t.nbytes].clone()  # at the start of memory, as other types need it
                t.copy_(part.view(t.dtype).view(t.shape))
                start += t.nbytes


def bits(t: Tensor) -> Tensor:
    """The bytes of a tensor's values (n,), in the order of its axes."""
    return t.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def layout_of(network: nn.Module, selected: bool = False) -> Layout:
    """By `requires_grad`. selected: statistics of a module whose own parameters do not train are frozen with them."""
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
    statistics: list[str] = []
    still: list[str] = []
    for name, buffer in network.named_buffers():
        if not buffer.is_floating_point():
            continue
        owner = name.rpartition(".")[0]
        module = network.get_submodule(owner)
        if selected and not any(p.requires_grad for p in module.parameters(recurse=False)):
            frozen.append(name)
            still += [] if owner in still else [owner]
        else:
            statistics.append(name)
    return Layout(tuple(trained), tuple(statistics), tuple(frozen), tuple(still))


def joined(tensors: Iterable[Tensor]) -> Tensor:
    """Tensors end to end, each with its axes in the order of the vector (a copy)."""
    return torch.cat([_lying(t.detach()).reshape(-1) for t in tensors])


def views(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The position of each of these tensors in the vector."""
    found, start = [], 0
    for t in like:
        lying = vector[start : start + t.numel()].view(_lying(t).shape)
        found.append(lying.permute(0, 3, 1, 2) if t.ndim == 4 else lying)
        start += t.numel()
    return found


def _lying(t: Tensor) -> Tensor:
    """A tensor with its axes in the order of the vector: the weights of convolutions with their channels last."""
    return t.permute(0, 2, 3, 1) if t.ndim == 4 else t


def _in_order(network: nn.Module, names: Iterable[str]) -> list[Tensor]:
    known: dict[str, Tensor] = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return [known[name] for name in names]


# all: every trainable parameter. classifier: all linear layers. head: the last layer (the last linear one, if there
# are any). last_weight: its weight matrix. Or names of parameters (fc2.weight), or of modules with all in them (fc2).
Part: TypeAlias = Literal["all", "classifier", "head", "last_weight"] | tuple[str, ...]

# What may stay with a client, or be trained alone: with the running statistics of its modules. norms: every
# normalisation layer, by its type; none where the network has none. The others as above; names may have wildcards.
Section: TypeAlias = Literal["head", "classifier", "norms"] | tuple[str, ...]
NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def positions(network: nn.Module, part: Part) -> Tensor:
    """The positions of this part in the vector of trainable parameters, ascending."""
    named = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    if part == "all":
        wanted = {id(p) for _, p in named}
    elif isinstance(part, str):
        wanted = layers_of_part(network, part) or {id(p) for _, p in named}  # no such layer: the whole model
    else:
        wanted = _by_name(network, [name for name, _ in named], part)
    spans, start = [], 0
    for _, p in named:
        if id(p) in wanted:
            spans.append(torch.arange(start, start + p.numel()))
        start += p.numel()
    return torch.cat(spans)


def inside(network: nn.Module, layout: Layout, section: Section) -> Tensor:
    """Which entries of the vector (P,) belong to a section; no names are an empty one."""
    known: dict[str, Tensor] = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    names = _names_in(network, layout, section)
    sizes = [(name in names, known[name].numel()) for name in (*layout.trained, *layout.statistics)]
    return torch.cat([torch.full((size,), belongs) for belongs, size in sizes])


def _names_in(network: nn.Module, layout: Layout, section: Section) -> set[str]:
    """The tensors of a section by name. Statistics belong to their module, and that to the section of its weights."""
    tensors = (*layout.trained, *layout.statistics)
    if section == "norms":
        kinds = {name for name, module in network.named_modules() if isinstance(module, NORMALISATIONS)}
        return {name for name in tensors if name.rpartition(".")[0] in kinds}
    if isinstance(section, str):
        wanted = layers_of_part(network, section)
        found = {name for name, p in network.named_parameters() if id(p) in wanted}
    else:
        found = set()
        for name in section:
            these = {one for one in tensors if fnmatchcase(one, name) or one.startswith(f"{name}.")}
            if not these:
                why = "is not a parameter or module of this model that is trained"
                raise CoterieError(f"part: '{name}' {why}.{suggest(name, tensors)}", code="model-part-unknown")
            found |= these
    owners = {name.rpartition(".")[0] for name in found & set(layout.trained)}
    return found | {name for name in layout.statistics if name.rpartition(".")[0] in owners}


def layers_of_part(
    network: nn.Module, part: Literal["classifier", "head", "last_weight"], trained: bool = True
) -> set[int]:
    """The parameters of linear layers, by id: of all, of the last one, or the weight of that; none where there is none.

    trained: only those that are trained.
    """
    own = [(m, [p for p in m.parameters(recurse=False) if p.requires_grad or not trained]) for m in network.modules()]
    layers = [(m, params) for m, params in own if params]
    linear = [(m, params) for m, params in layers if isinstance(m, nn.Linear)]
    if part == "classifier":
        return {id(p) for _, params in linear for p in params}
    if part == "head":
        return {id(p) for p in (linear or layers)[-1][1]}
    # A layer with an adapter has no weight of its own: what is called so there is computed.
    weights = [m.weight for m, params in linear if any(p is m.weight for p in params)]
    return {id(weights[-1])} if weights else set()


def _by_name(network: nn.Module, trained: Sequence[str], part: Sequence[str]) -> set[int]:
    if not part:
        raise CoterieError("part: empty; name at least one parameter, such as fc2.weight", code="model-part-unknown")
    known = dict(network.named_parameters())
    found: set[int] = set()
    for name in part:
        these = [one for one in trained if one == name or one.startswith(f"{name}.")]
        if not these:
            frozen = any(one == name or one.startswith(f"{name}.") for one in known)
            why = "is frozen: training does not change it" if frozen else "is not a parameter or module of this model"
            raise CoterieError(f"part: '{name}' {why}.{suggest(name, trained)}", code="model-part-unknown")
        found |= {id(known[one]) for one in these}
    return found


def outputs_of(network: nn.Module) -> int:
    """How many outputs a network has, by its last linear layer, or by its last parameter where it has no such layer."""
    linear = [m.out_features for m in network.modules() if isinstance(m, nn.Linear)]
    return linear[-1] if linear else list(network.parameters())[-1].shape[0]


# all: what the network itself marks as trainable. head: the last linear layer. classifier: all linear layers.
# adapters: low-rank adapters. Or patterns of names of parameters or modules: ("encoder.layer.5", "*.bias").
Train: TypeAlias = Literal["all", "head", "classifier", "adapters"] | tuple[str, ...]
WORDS = ("all", "head", "classifier", "adapters")


@validated(frozen=True, config=STRICT)
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
