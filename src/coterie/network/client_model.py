"""The model of a client, stored where the client is: after every evaluation the one it was evaluated with.

The server's task says which models a client predicts with (its cluster's, a sum of several) or that it is the client's
own. Nothing more is asked of the server, and after the last evaluation the directory has the final model.

client-model.json      the network, how the inputs were scaled, the classes, the round
model-000030.safetensors   the parameters
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from coterie.core.compute import one_thread
from coterie.core.decoder import DecodeError, decode, parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import write_durably, writing
from coterie.core.model import Ensemble
from coterie.core.registry import Consent
from coterie.core.settings import explained
from coterie.data.federation import Federation
from coterie.network.messages import ModelSpec
from coterie.network.registry import Shape
from coterie.training.build import named_model
from coterie.training.data_record import DataRecord, scale_of, target_of
from coterie.training.predict import as_inputs

FILE, FORMAT = "client-model.json", "coterie-client-model-1"


@dataclass(frozen=True)
class _SavedModel:
    """client-model.json."""

    format: str
    client: str
    round: int
    network: ModelSpec
    networks: int  # how many predict together
    average: bool  # their outputs are averaged; False: added. Where there are weights (`mixture`), mixed
    mixture: bool
    file: str
    data: dict[str, Any]


@explained
@dataclass(frozen=True, eq=False)
class ClientModel:
    """A client's own model, read back: `network` takes scaled inputs, `predict` takes samples as they are stored."""

    client: str
    round: int
    network: nn.Module
    data: DataRecord

    def predict(self, x: Any, *, proba: bool = False) -> NDArray[Any]:
        """Labels (or targets) of new inputs; with proba the probability of each class."""
        inputs = as_inputs(x, self.data, scale_of(self.data, 0))
        with one_thread(), torch.inference_mode():
            said = self.network(inputs)
        if self.data.kind == "regression":
            target = target_of(self.data, 0)
            return np.asarray((said if target is None else target.undo(said)).numpy())
        return np.asarray(torch.softmax(said.double(), 1).numpy() if proba else said.argmax(1).numpy())


def save_model(place: Path, name: str, round: int, network: nn.Module, spec: ModelSpec, data: Federation) -> None:
    """Store a client's model; the one of before is replaced when this one is there in full."""
    together = network if isinstance(network, Ensemble) else None
    file = f"model-{round:06d}.safetensors"
    said = _SavedModel(
        *(FORMAT, name, round, spec, 1 if together is None else len(together.networks)),
        average=together is not None and together.average,
        mixture=together is not None and together.mixture is not None,
        file=file,
        data=DataRecord.of(data).to_json(),
    )
    tensors = {key: value.detach().clone().contiguous() for key, value in network.state_dict().items()}
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
        write_durably(place / file, safetensors.torch.save(tensors))
        write_durably(place / FILE, json.dumps(asdict(said), indent=1) + "\n")
        for old in place.glob("model-*.safetensors"):
            if old.name != file:
                old.unlink()


def load_client_model(directory: str | Path, *, trust: tuple[str, ...] = ()) -> ClientModel:
    """The model that `coterie client --save-model DIR` stored.

    trust: a network of your own that it names and that may be imported, ("module:Net",).
    """
    place = Path(directory)
    try:
        said = decode(parse_json((place / FILE).read_bytes()), _SavedModel)
        if said.format != FORMAT:
            raise CoterieError(f"{place / FILE}: of format {said.format}, expected {FORMAT}", code="run-version")
        if Path(said.file).name != said.file:
            raise DecodeError("file: a name without a directory was expected")
        tensors = safetensors.torch.load_file(place / said.file)
        data = DataRecord.from_json(said.data)
    except OSError as error:
        raise CoterieError(f"{place}: has no model of a client ({error.strerror})", code="run-not-found") from None
    except (DecodeError, ValueError, TypeError, KeyError, safetensors.SafetensorError) as error:
        raise CoterieError(f"{place}: damaged ({error})", code="run-damaged") from None
    spec = said.network
    params = parse_json(spec.params)
    consent = Consent(frozenset(trust), source=str(place / FILE), how="load_client_model(dir, trust=('{name}',))")
    model = named_model(spec.name, params, Shape(tuple(spec.input_shape), data.kind, spec.outputs), consent)
    parts = [model.replica().network for _ in range(said.networks)]
    network: nn.Module = parts[0]
    if said.networks > 1 or said.mixture:
        weights = torch.zeros(said.networks) if said.mixture else None
        network = Ensemble(parts, None if weights is None else weights.to(tensors["mixture"]), said.average, model.loss)
    network.load_state_dict(tensors)
    return ClientModel(said.client, said.round, network.eval(), data)
