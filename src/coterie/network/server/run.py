"""Train with real clients over a network: the same loop, methods and run directory as in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.termination import Interruption
from coterie.layers.privacy import check_with_clients
from coterie.methods.fedavg import FedAvg
from coterie.network.audit import AuditEntry, no_audit
from coterie.network.protocol.messages import model_spec
from coterie.network.server.client_registry import ClientRegistry
from coterie.network.server.config import ServerConfig
from coterie.network.server.engine import NetworkEngine
from coterie.network.transport import Transport
from coterie.training.assembly import EngineRequest, Output, assemble
from coterie.training.build import build_method, build_model, method_and_model
from coterie.training.events import Listener
from coterie.training.inspection import Inspection, inspect_clients
from coterie.training.loop import train
from coterie.training.result import Result


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
