"""What somebody who has only the file must know about it: inputs, scaling, classes, layers. Plain JSON."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from coterie.core.model import Ensemble
from coterie.core.registry import METHODS, MODELS, Catalogue
from coterie.core.version import __version__
from coterie.data.columns import TableScale
from coterie.serving.export.graph import CLASSIFICATION, REGRESSION
from coterie.serving.export.selection import Selected
from coterie.training.result import Result

FORMAT = "coterie-export-1"
RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional", "proj_size")
INPUTS = "inputs"  # what the input of a graph is called
Json: TypeAlias = dict[str, Any]  # a JSON object, only written here


@dataclass(frozen=True)
class Description:
    """The JSON object; docs/export.md explains each key."""

    format: str
    library_version: str
    run: str
    method: str
    rounds: int
    cluster: int | None
    client: str | None
    task: str
    inputs: Json
    outputs: tuple[str, ...]
    columns: tuple[str, ...] | None
    class_names: tuple[str, ...] | None
    scaling: Json
    target_scaling: Json | None
    combine: Json
    architecture: Json

    def to_json(self) -> Json:
        """As a JSON object."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def describe(result: Result[Any], chosen: Selected) -> Description:
    """Of a model that is to be exported."""
    classes = chosen.loss == "cross_entropy"
    target = chosen.target
    return Description(
        format=FORMAT,
        library_version=__version__,
        run="" if result.run_dir is None else result.run_dir.resolve().name,
        method=registered_name(METHODS, result.method),
        rounds=rounds_of(result),
        cluster=chosen.cluster,
        client=None if chosen.client is None else chosen.client_name or str(chosen.client),
        task="classification" if classes else "regression",
        inputs={"name": INPUTS, "type": str(chosen.dtype).removeprefix("torch."), "shape": ["batch", *chosen.shape]},
        outputs=CLASSIFICATION if classes else REGRESSION,
        columns=columns_of(result, chosen),
        class_names=result.class_names,
        scaling=_scaling(chosen),
        target_scaling=None if target is None else {"mean": target.mean.tolist(), "std": target.std.tolist()},
        combine=_combine(chosen.network),
        architecture=_architecture(result, chosen.network),
    )


def rounds_of(result: Result[Any]) -> int:
    """How many rounds it was trained for."""
    return result.history[-1].round if result.history else result.settings.rounds


def columns_of(result: Result[Any], chosen: Selected) -> tuple[str, ...] | None:
    """The names of the numbers of a sample, in their order, where they have names."""
    if isinstance(chosen.scale, TableScale):
        return chosen.scale.names
    found = getattr(result.known, "features", None)
    return found if found and (len(found),) == chosen.shape else None


def registered_name(catalogue: Catalogue, thing: object) -> str:
    """As `coterie list methods` lists it; a user's own has the name of its class."""
    place = f"{type(thing).__module__}:{type(thing).__qualname__}"
    return next((name for name, home in catalogue.places.items() if home == place), type(thing).__name__)


# ------------------------------------------------------------------------------------------------- inputs


def _scaling(chosen: Selected) -> Json:
    scale = chosen.scale
    if chosen.scaled_by_clients:
        return {"kind": "by-clients"}
    if scale is None or scale.plain:
        return {"kind": "none"}
    numbers = {"divisor": scale.divisor, "mean": _plain(scale.mean), "std": _plain(scale.std)}
    if not isinstance(scale, TableScale):
        return {"kind": "scale"} | numbers
    return {"kind": "table", "columns": list(_columns(scale)), "encoded": list(scale.inputs)} | {
        key: numbers[key] for key in ("mean", "std")
    }


def _columns(scale: TableScale) -> Iterator[Json]:
    for column in scale.columns:
        yield {
            "name": column.name,
            "kind": "number" if column.values is None else "category",
            "values": column.values,
            "fill": column.fill,
            "indicator": column.indicator,
            "missing_accepted": column.fills,
        }


def _plain(value: float | Tensor) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


# ------------------------------------------------------------------------------------------------ network


def _combine(network: nn.Module) -> Json:
    """How several networks give one output, and how the names of their tensors begin."""
    if not isinstance(network, Ensemble):
        return {"rule": "single", "prefixes": [""], "weights": None}
    rule = "mixture" if network.mixture is not None else "average" if network.average else "sum"
    weights = None if network.mixture is None else network.mixture.tolist()
    return {"rule": rule, "prefixes": [f"networks.{i}." for i in range(len(network.networks))], "weights": weights}


def _architecture(result: Result[Any], network: nn.Module) -> Json:
    """The layers with the arguments that `torch.nn` makes them of. in_order: each takes what the one before gives."""
    one = network.networks[0] if isinstance(network, Ensemble) else network
    inside = [(name, module) for name, module in one.named_modules() if not list(module.children())]
    holders = [module for module in one.modules() if list(module.children())]
    build = result.model.build
    made_by: Any = build.func if isinstance(build, partial) else None
    named = is_dataclass(made_by) and not isinstance(made_by, type)
    return {
        "name": registered_name(MODELS, made_by) if named else type(one).__name__,
        "parameters": {f.name: getattr(made_by, f.name) for f in fields(made_by)} if named else {},
        "in_order": all(type(module) is nn.Sequential for module in holders) and _plain_layers(inside),
        "layers": [{"name": name, "type": type(m).__name__, "arguments": _arguments(m)} for name, m in inside],
    }


def _plain_layers(inside: list[tuple[str, nn.Module]]) -> bool:
    return all(getattr(nn, type(module).__name__, None) is type(module) for _, module in inside)


def _arguments(module: nn.Module) -> Json:
    """The constructor's arguments, as far as the layer keeps them as numbers, text and tuples of these."""
    found: Json = {}
    names = RECURRENT if isinstance(module, nn.RNNBase) else inspect.signature(type(module).__init__).parameters
    for name in names:
        value = getattr(module, name, None)
        if name == "bias":
            found[name] = value is not None and value is not False
        elif isinstance(value, bool | int | float | str) or _is_tuple_of_numbers(value):
            found[name] = value
    return found


def _is_tuple_of_numbers(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(one, int | float) for one in value)


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """The tensors of a network by name, each in memory of its own. Weights of a mixture are in the description."""
    kept = {name: tensor for name, tensor in network.state_dict().items() if name != "mixture"}
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in kept.items()}
