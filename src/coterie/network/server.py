"""Train with real clients over a network: the same loop, methods and run directory as in a simulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from coterie.client.contract import Memory
from coterie.core.decoder import parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import check_run_files
from coterie.core.model import Model
from coterie.core.processes import Interruption
from coterie.core.registry import Consent
from coterie.core.seeds import Purpose, generator
from coterie.core.settings import explained_call
from coterie.core.tables import Roster
from coterie.core.tasks import Evaluated
from coterie.data.federation import Federation
from coterie.engines.contract import ERRORS
from coterie.insight.inspect import Inspection, inspect_clients
from coterie.layers.privacy import check_with_clients
from coterie.methods.contract import Method
from coterie.methods.fedavg import FedAvg
from coterie.network.audit import AuditEntry, no_audit
from coterie.network.config import ServerConfig, defence_line, read, reports_isolated
from coterie.network.engine import NetworkEngine, Transport
from coterie.network.messages import model_spec
from coterie.network.registry import ClientRegistry
from coterie.training import checkpoint
from coterie.training.assembly import EngineRequest, Output, assemble
from coterie.training.build import AnyModel, build_method, build_model, method_and_model
from coterie.training.config import read_file
from coterie.training.events import Listener
from coterie.training.learning_rate import recorded, with_rates
from coterie.training.loading import load_run
from coterie.training.loop import train
from coterie.training.result import Result
from coterie.training.run_directory import belongs, read_history
from coterie.training.trust import consent_of


def train_with_clients(
    transport: Transport,
    config: ServerConfig,
    path: Path,
    *,
    resume: bool = False,
    keys: Callable[[], dict[str, str]] | None = None,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], None] = lambda _: None,
    note: Callable[[AuditEntry], None] = no_audit,
    interruption: Interruption | None = None,
) -> Result[Any]:
    """Wait for clients, build the model for their data, and train.

    keys: the names of clients by their public keys; None if keys are not used. note: where refusals are written down.
    interruption: a wish to stop, which waits until the round is over and saved, but not for clients to connect.
    """
    method = build_method(config)
    check_with_clients(method, config.settings)  # before clients are kept waiting
    registry = ClientRegistry.read(path) if resume else ClientRegistry()
    # Clients keep their state as far back as the oldest checkpoint that the server may resume from.
    kept = config.keep_checkpoints
    keep_rounds = config.rounds if kept == "all" else kept * config.checkpoint_every
    engine = NetworkEngine(transport, registry, config.network, keys=keys, keep_rounds=keep_rounds, say=say, note=note)
    interruption = engine.interruption = interruption or Interruption()
    engine.reports_isolated = reports_isolated(config.settings)
    say(defence_line(config))
    model = _model(engine, config)
    output = Output(path, resume, config.dump() | method_and_model(config, method), say)
    parts = (method, model, registry, config.settings, EngineRequest(engine), output)
    with assemble(*parts, listeners=listeners, say=say, interruption=interruption) as run:
        registry.path = path
        return train(run)


def inspect_with_clients(
    transport: Transport,
    config: ServerConfig,
    *,
    keys: Callable[[], dict[str, str]] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Inspection:
    """Wait for clients and inspect them; nothing is trained, and nothing is kept here or there."""
    registry = ClientRegistry()
    engine = NetworkEngine(transport, registry, config.network, keys=keys, say=say)
    model = _model(engine, config)
    with assemble(FedAvg(local=config.local), model, registry, config.settings, EngineRequest(engine)) as run:
        return inspect_clients(run, config.local)


def _model(engine: NetworkEngine, config: ServerConfig) -> Model:
    """Wait for clients, and build the model for their data."""
    engine.wait()
    shape = engine.registry.shape
    if shape is None:
        raise CoterieError("no client has said what its data looks like", code="clients-absent")
    model = build_model(config, shape)
    engine.network = model_spec(config.model, shape, model)
    engine.frozen = partial(model.layout.frozen_bytes, model.blueprint)
    return model


def load_network_run(path: Path, tree: Mapping[str, Any], saves: Sequence[Path], consent: Consent) -> Result[Any]:
    """The run as of its last checkpoint; clients' scores are those of its last evaluation."""
    config, registry = read(None, base=tree, consent=consent), ClientRegistry.read(path)
    if registry.shape is None:
        raise CoterieError(
            f"{path}: has no members.json, so nobody knows what its clients' data looks like", code="run-damaged"
        )
    method = with_rates(build_method(config), recorded(path))
    model = build_model(config, registry.shape)
    ids = torch.arange(len(registry))
    template = method.init(model, Roster(ids, registry.sizes(ids)), generator(config.seed, Purpose.INIT))
    mine = belongs(method, model, registry, config.settings)
    saved = checkpoint.newest(saves, template, method, mine, model=model)
    history = read_history(path, saved.round)
    summary = next((event.summary for event in reversed(history) if event.summary is not None), None)
    scores = path / "clients.json"
    if summary is None or not scores.is_file():
        raise CoterieError(
            f"{path}: has not been evaluated yet; go on with it: coterie server --resume {path}",
            code="run-not-evaluated",
        )
    memory = Memory()
    memory.restore(saved.memory)
    return Result(
        *(method, model, saved.state, history, _evaluated(parse_json(scores.read_bytes())), summary),
        *(sum(event.seconds for event in history), registry, config.settings, memory),
        placed=saved.state,
        run_dir=path,
    )


def _evaluated(rows: Sequence[Mapping[str, Any]]) -> Evaluated:
    def column(name: str) -> Tensor:
        return torch.tensor([math.nan if row[name] is None else float(row[name]) for row in rows], dtype=torch.float64)

    errors = [column(name) if rows and name in rows[0] else None for name in ERRORS]
    shares = [row["shares"] for row in rows if "shares" in row]
    return Evaluated(
        torch.tensor([row["client"] for row in rows], dtype=torch.int64),
        torch.tensor([row["samples"] for row in rows], dtype=torch.int64),
        *(column("loss"), column("accuracy"), column("macro_f1")),
        torch.tensor([row["cluster"] for row in rows], dtype=torch.int64),
        torch.tensor(shares) if len(shares) == len(rows) else None,
        mae=errors[0],
        constant=errors[1],
        variance=errors[2],
    )


@explained_call
def load(
    run_dir: str | Path,
    *,
    method: Method[Any] | None = None,
    federation: Federation | Sequence[tuple[ArrayLike, ...]] | None = None,
    model: AnyModel | None = None,
    trust: Sequence[str] = (),
) -> Result[Any]:
    """A run read back from its directory: state, history, clients' scores. It may have been moved.

    The training data is not needed to predict, to admit newcomers or to export networks; result.federation reads it
    where it is still there. trust: code of your own that the run names and that may be imported, ("module:Name",).
    A method or a model of your own, given to `coterie.run` as an object, is given here again.
    """
    path = Path(run_dir)
    check_run_files(path)
    if not (path / "config.yaml").is_file():
        raise CoterieError(f"{path}: not a run (it has no config.yaml)", code="run-not-found")
    tree = read_file(path / "config.yaml")
    saves = sorted((path / "checkpoints").glob("round-*.safetensors"))
    if not saves:
        raise CoterieError(f"{path}: has no checkpoint to load", code="checkpoint-missing")
    if "network" in tree:
        return load_network_run(path, tree, saves, consent_of(path, trust))
    return load_run(path, tree, saves, method=method, federation=federation, model=model, trust=trust)
