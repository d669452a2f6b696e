"""A run over a real network, from a configuration: the same driver, methods and run directory as in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coterie.config import build_method, method_and_model
from coterie.driver import drive
from coterie.errors import CoterieError
from coterie.events import Listener
from coterie.network.engine import Federated
from coterie.network.errand import plan_of
from coterie.network.members import Members
from coterie.network.post import Post
from coterie.network.settings import ServerConfig
from coterie.result import Result
from coterie.setup import named_model
from coterie.store import KEPT, RunDirectory


def conduct(
    post: Post,
    config: ServerConfig,
    path: Path,
    *,
    resume: bool = False,
    keys: Callable[[], dict[str, str]] | None = None,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Result[Any]:
    """Wait for clients, build what fits their data, and train. `keys`: clients' names by their public keys."""
    method = build_method(config)
    members = Members.read(path) if resume else Members()
    # Clients keep as far back as the oldest checkpoint that the server may go back to.
    engine = Federated(*(post, members, config.network), keys=keys, keep_rounds=KEPT * config.checkpoint_every, say=say)
    engine.wait()
    if members.shape is None:
        raise CoterieError("no client has said what its data looks like")
    model = named_model(config.model.name, config.model.params, members.shape)
    engine.network = plan_of(config.model, members.shape, model)
    tree = config.dump() | method_and_model(config, method)
    store = RunDirectory(path, method, model, members, config.settings, resume, tree)
    members.path = path
    return drive(method, model, members, config.settings, engine, store, listeners)
