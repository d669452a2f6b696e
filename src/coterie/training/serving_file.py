"""serving.json: what a run directory needs besides its checkpoints to be used without the training data, anywhere.

The form of the data (see `DataRecord`) and, for a run made in Python, the method and the model where they are the
library's own. A configuration names both itself. No pickle, no code: a user's own classes are given to `coterie.load`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from coterie.core.decoder import DecodeError, decode, parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import plain_bytes
from coterie.core.model import Model
from coterie.core.registry import LOSSES, METHODS, MODELS, NO_CODE, Catalogue
from coterie.core.tasks import Local
from coterie.data.federation import Federation
from coterie.training.data_record import DataRecord, Json
from coterie.training.tuned import recorded

FILE, FORMAT = "serving.json", "coterie-serving-1"


@dataclasses.dataclass(frozen=True, eq=False)
class ServingFile:
    """The content of the file."""

    data: DataRecord
    method: Json | None = None  # {name: ..., its parameters}; None where a configuration names it, or nothing can
    model: Json | None = None


@dataclasses.dataclass(frozen=True)
class _Contents:
    """The JSON object."""

    format: str
    data: dict[str, Any]
    method: dict[str, Any] | None
    model: dict[str, Any] | None


def contents(data: Federation, method: object | None, model: Model | None) -> Json:
    """The file as a JSON object; a method and a model that have no name in the catalogue are left out."""
    architecture = model.build.func if model is not None and isinstance(model.build, partial) else None
    return {
        "format": FORMAT,
        "method": _named(METHODS, method),
        "model": None if model is None else _model(model, architecture),
        "data": DataRecord.of(data).to_json(),
    }


def _model(model: Model, architecture: object | None) -> Json | None:
    """The network by name, and what of it is trained."""
    named = _named(MODELS, architecture)
    loss = None if isinstance(model.loss, str) else _named(LOSSES, model.loss)
    if named is None or (loss is None and not isinstance(model.loss, str)):
        return None
    return named | recorded(model.train, model.adapters) | ({} if loss is None else {"loss": loss})


def read(path: Path, source: Callable[[], Federation] | None) -> ServingFile | None:
    """The file of a run directory; None where it has none (a run of version 0.1)."""
    file = path / FILE
    try:
        tree = parse_json(plain_bytes(file))
        if isinstance(tree, dict) and tree.get("format", FORMAT) != FORMAT:
            raise CoterieError(
                f"{file}: has the format {tree['format']!r}, this version reads {FORMAT}", code="run-version"
            )
        found = decode(tree, _Contents)
        return ServingFile(DataRecord.from_json(found.data, source), found.method, found.model)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CoterieError(f"{file}: cannot be read ({error.strerror})", code="disk-read") from None
    except (DecodeError, ValueError, TypeError) as error:
        raise CoterieError(
            f"{file}: damaged ({error}); resume the run once where its training data is, which writes the file again",
            code="run-damaged",
        ) from None


def _named(catalogue: Catalogue, thing: object | None) -> Json | None:
    """{name: ..., its parameters}, from which `rebuilt` makes the very same; None where it cannot."""
    place = f"{type(thing).__module__}:{type(thing).__qualname__}"
    name = next((name for name, home in catalogue.places.items() if home == place), None)
    if name is None or not dataclasses.is_dataclass(thing):
        return None
    out: Json = {"name": name}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if isinstance(value, Local):
            value = TypeAdapter(Local).dump_python(value, mode="json")
        elif dataclasses.is_dataclass(value):
            value = _named(catalogue, value)
            if value is None:
                return None
        out[field.name] = value
    try:
        same = rebuilt(catalogue, json.loads(json.dumps(out))) == thing
    except (CoterieError, TypeError, ValueError):
        return None
    return out if same else None


def rebuilt(catalogue: Catalogue, record: Mapping[str, Any]) -> Any:
    """The thing that was recorded, out of the catalogue and nothing else."""
    params = dict(record)
    name = params.pop("name")
    if name not in catalogue.places:
        raise CoterieError(f"{catalogue.kind}: '{name}' is not of this library", code="run-damaged")
    base = params.get("base")
    if isinstance(base, dict):
        params["base"] = rebuilt(catalogue, base)
    return catalogue.build(name, params, NO_CODE)
