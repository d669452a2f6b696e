"""`coterie.go_on`: a run in a directory goes on, for more rounds, with more clients, or from an earlier round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from coterie.core.compute import AUTOMATIC, Compute
from coterie.core.errors import CoterieError
from coterie.core.settings import explained_call, settings_from
from coterie.data.federation import Federation
from coterie.engines.choose import EngineName
from coterie.engines.contract import Engine
from coterie.methods.contract import Method
from coterie.training import lineage, serving_file
from coterie.training.assembly import EngineRequest, Output, assemble
from coterie.training.beginning import recorded_precision
from coterie.training.build import AnyModel, Components, build_addition, build_data, build_method, build_model
from coterie.training.checks import check_fit
from coterie.training.config import RunConfig, Tree, read, read_file
from coterie.training.events import Listener
from coterie.training.execute import execute
from coterie.training.going_back import go_back
from coterie.training.going_on import Clients, check_not_stopped, joined_with, locked, rounds_of, write_addition
from coterie.training.loading import made_in_python
from coterie.training.loop import train
from coterie.training.result import Result
from coterie.training.run_directory import check_directory
from coterie.training.sampling import training_data
from coterie.training.settings import Settings
from coterie.training.trust import consent_of, with_attack

Given = Clients | None
Start = Callable[[], Result[Any]]


@explained_call
def go_on(
    run_dir: str | Path,
    *,
    more: int | None = None,
    add: Clients | None = None,
    back_to: int | None = None,
    federation: Clients | None = None,
    added: Sequence[Clients] = (),
    method: Method[Any] | None = None,
    model: AnyModel | None = None,
    engine: EngineName | Engine = "auto",
    workers: int | None = None,
    listeners: Sequence[Listener] = (),
    trust: Sequence[str] = (),
) -> Result[Any]:
    """Go on with a run: `more` rounds after those that are done, to the bits of a run with as many from the start.

    add: new clients, as a Federation or a list of (x, y) per client. Their ids follow; the method admits them by its
        own rule and trains with them.
    back_to: a round to go back to first; what came after it is moved to run_dir/abandoned-1, -2, ...
    federation: the data the run began with, if it was made in Python. added: what was added in Python before, in order.
    method, model: if they are of your own. engine, workers: of a run made in Python; another has its own.
    trust: code of your own that the run names and that may be imported, ("module:Name",).
    """
    path = Path(run_dir)
    check_directory(path, True)
    tree = read_file(path / "config.yaml")
    if "network" in tree:
        raise CoterieError(f"{path}: is a run over a network; use: coterie server --resume {path}", code="run-kind")
    with locked(path):
        if back_to is not None:
            go_back(path, back_to, lambda _: None)
            tree = read_file(path / "config.yaml")
        if "data" in tree:
            start = _configured(path, tree, more, add, added, listeners, trust)
        else:
            request = EngineRequest(engine, workers, compute=_computed(path) if isinstance(engine, str) else AUTOMATIC)
            start = _in_python(path, tree, more, add, federation, added, method, model, request, listeners, trust)
    return start()


def _configured(
    path: Path,
    tree: Tree,
    more: int | None,
    new: Given,
    added: Sequence[Clients],
    listeners: Sequence[Listener],
    trust: Sequence[str],
) -> Start:
    """A run of a configuration: what is to be called when the directory is unlocked."""
    config = read(None, base=tree, consent=consent_of(path, trust))
    config = replace(config, rounds=rounds_of(path, config.rounds, more))
    check_not_stopped(path, config.settings)
    began = build_data(config)
    network = build_model(config, began)
    data = _data(path, began, added, config.settings, config)
    data = _with(path, data, new, config.settings, network)
    made = Components(build_method(config), data, network)
    return partial(execute, config, path, resume=True, components=made, listeners=listeners)


def _computed(path: Path) -> Compute:
    """As the run began, with the device of this machine."""
    return settings_from(Compute, precision=recorded_precision(path) or AUTOMATIC.precision)


def _in_python(
    path: Path,
    tree: Tree,
    more: int | None,
    new: Given,
    federation: Given,
    added: Sequence[Clients],
    method: Any,
    model: Any,
    request: EngineRequest,
    listeners: Sequence[Listener],
    trust: Sequence[str],
) -> Start:
    """A run that was made in Python."""
    settings = settings_from(Settings, **{k: v for k, v in tree.items() if k != "method"})
    settings = with_attack(settings, consent_of(path, trust))
    settings = replace(settings, rounds=rounds_of(path, settings.rounds, more))
    check_not_stopped(path, settings)
    if federation is None:
        raise CoterieError(
            f"{path}: was made in Python; give its data: go_on(dir, federation=...)", code="argument-missing"
        )
    began = training_data(Federation.of(federation), settings)
    _, used, network = made_in_python(path, method, began, model, serving_file.read(path, None))
    data = _with(path, _data(path, began, added, settings, None), new, settings, network)

    def start() -> Result[Any]:
        with assemble(used, network, data, settings, request, Output(path, True), listeners=listeners) as run:
            return train(run)

    return start


def _data(
    path: Path, began: Federation, added: Sequence[Clients], settings: Settings, config: RunConfig | None
) -> Federation:
    """The data of the run as it is now; what was added in Python is given again."""
    history, given, data = lineage.read(path), list(added), began
    for one in history.added:
        if one.data is None and given:
            data = joined_with(data, given.pop(0), settings)
        elif one.data is not None and config is not None:
            data = lineage.added_to(data, build_addition(config, one.data))
    return lineage.applied(history, data, None if config is None else partial(build_addition, config))


def _with(path: Path, data: Federation, new: Given, settings: Settings, network: Any) -> Federation:
    """The data with new clients, if there are any; from when they are written down, the run has them."""
    if new is None:
        return data
    joined = joined_with(data, new, settings)
    check_fit(network, joined)
    write_addition(path, data, joined, None)
    return joined
