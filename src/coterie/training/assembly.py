"""Assemble a run, for `coterie.run`, `coterie run` and `coterie server`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from warnings import warn

from coterie.core.clients import Clients
from coterie.core.hardware import one_thread
from coterie.core.model import Model
from coterie.data.federation import Federation
from coterie.engines.contract import Engine
from coterie.engines.factory import chosen, local_of, make_engine
from coterie.methods.contract import Method
from coterie.training.checks import check
from coterie.training.evaluation import ScoredSplit
from coterie.training.events import Event, Listener
from coterie.training.job import Job
from coterie.training.run_directory import RunDirectory, check_directory
from coterie.training.settings import Settings

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Run(Job[State]):
    """A run that is ready to train."""

    directory: RunDirectory | None = None
    listeners: Sequence[Listener] = ()
    final_split: ScoredSplit = "test"  # "val" never uses the test samples

    def notify(self, event: Event) -> None:
        """Pass an event on: to the run directory first, then to the listeners."""
        if self.directory is not None:
            self.directory.listen(event)
        for listener in self.listeners:
            listener(event)


@dataclass(frozen=True)
class EngineRequest:
    """An engine by name, or an existing one."""

    engine: str | Engine
    workers: int | None = None
    address: str | None = None  # of a Ray cluster


@dataclass(frozen=True)
class Output:
    """The directory of a run. config: what config.yaml says; None for a run made in Python."""

    path: Path
    resume: bool = False
    config: Mapping[str, Any] | None = None
    say: Callable[[str], None] = warn  # called with messages about damaged files


def _silent(_: str) -> None:
    pass


@contextmanager
def assemble(
    method: Method[State],
    model: Model,
    clients: Clients,
    settings: Settings,
    engine: EngineRequest,
    output: Output | None = None,
    *,
    listeners: Sequence[Listener] = (),
    final_split: ScoredSplit = "test",
    say: Callable[[str], None] = _silent,
) -> Iterator[Run[State]]:
    """Check everything, choose and open the engine, and prepare the run directory. The engine is closed afterwards.

    say: called with a message if `auto` chose an engine or a run to resume has no checkpoint.
    """
    if isinstance(clients, Federation):  # over a network clients check their own data
        check(model, clients, settings)
    if output is not None:
        check_directory(output.path, output.resume)
    config = None if output is None else output.config
    if engine.engine == "auto" and isinstance(clients, Federation):
        engine = _chosen(engine, method, model, clients, settings, say)
        # The chosen engine is recorded, so that the run can be repeated and resumed to the same bits.
        workers = {} if engine.workers is None else {"workers": engine.workers}
        config = None if config is None else {**config, "engine": {"name": engine.engine, **workers}}
    directory = None
    if output is not None:
        directory = RunDirectory(output.path, method, model, clients, settings, output.resume, config, output.say)
        if output.resume and not directory.saves():
            say(f"{output.path}: has no checkpoint to resume from, so it starts from the beginning")
    with _opened(engine, model, clients) as opened:
        yield Run(method, model, clients, settings, opened, directory, listeners, final_split)


def _chosen(
    engine: EngineRequest,
    method: Method[Any],
    model: Model,
    federation: Federation,
    settings: Settings,
    say: Callable[[str], None],
) -> EngineRequest:
    """The engine that `engine: auto` chooses on this machine."""
    per_round = settings.clients_per_round(len(federation))
    with one_thread():
        choice = chosen("auto", engine.workers, model, federation, local_of(method), per_round)
    assert choice is not None
    say(f"engine: {choice}")
    return EngineRequest(choice.name, choice.workers, engine.address)


@contextmanager
def _opened(request: EngineRequest, model: Model, clients: Clients) -> Iterator[Engine]:
    if isinstance(clients, Federation):
        with make_engine(request.engine, model, clients, request.workers, request.address) as engine:
            yield engine
        return
    assert not isinstance(request.engine, str), "an engine by name needs the clients' data"
    yield request.engine
