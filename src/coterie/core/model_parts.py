"""Parts of a model, as positions in its vector: the only definition of these parts."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError, suggest
from coterie.core.model_layout import Layout

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
