"""Assemble a run, for `coterie.run`, `coterie run` and `coterie server`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from warnings import warn

from coterie.core.compute import AUTOMATIC, Compute
from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.core.processes import Interruption
from coterie.core.tables import Clients
from coterie.data.federation import Federation
from coterie.engines.choose import Sizes, chosen, local_of, make_engine
from coterie.engines.contract import Engine, device_of
from coterie.layers import chosen as layers_of
from coterie.layers.contract import Layer, Setup, prepared
from coterie.methods.contract import Method
from coterie.training import learning_rate
from coterie.training.beginning import check_precision, recorded_arithmetic
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
    interruption: Interruption = field(default_factory=Interruption)  # waits until the round is over and saved

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
    compute: Compute = AUTOMATIC  # where clients are computed, and how precisely
    gpus: float | None = None  # of a GPU for each of Ray's actors


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
    layers: Sequence[Layer] = (),
    final_split: ScoredSplit = "test",
    say: Callable[[str], None] = _silent,
    interruption: Interruption | None = None,
) -> Iterator[Run[State]]:
    """Check everything, choose and open the engine, and prepare the run directory. The engine is closed afterwards.

    layers: the user's own, beside those that the settings ask for. say: called with a message if `auto` found an engine
    or a learning rate, if a layer has a remark, or if a run to resume has no checkpoint.
    """
    if isinstance(clients, Federation):  # over a network clients check their own data
        check(model, clients, settings)
    around = layers_of(settings, layers)
    setup = prepared(around, Setup(method, model, clients, settings, not isinstance(engine.engine, str)))
    if output is not None:
        check_directory(output.path, output.resume)
        if output.resume and isinstance(engine.engine, str):
            check_precision(output.path, engine.compute.precision)
    config = None if output is None else output.config
    engine = _with_device(engine)
    if engine.engine == "auto" and isinstance(clients, Federation):
        begun = _begun(output.path) if output is not None and output.resume else None
        engine = _chosen(engine, method, model, clients, settings, begun, say)
        # The chosen engine is recorded, so that the run can be repeated and resumed to the same bits.
        workers = {} if engine.workers is None else {"workers": engine.workers}
        config = None if config is None else {**config, "engine": {"name": engine.engine, **workers}}
    for remark in setup.remarks:
        say(remark)
    with _opened(engine, model, setup.data or clients) as opened:
        if config is not None and "device" in config:
            config = {**config, "device": device_of(opened)}
        rates = learning_rate.recorded(output.path) if output is not None and output.resume else {}
        job = Job(method, model, clients, settings, opened, layers=around, prepared=setup)
        method, searches = learning_rate.settle(job, rates, say)
        directory = None
        if output is not None:
            also = {learning_rate.FILE: learning_rate.as_text(searches)} if searches else {}
            output = replace(output, config=config)
            directory = _directory(output, replace(job, method=method), also, say)
            directory.precision = engine.compute.precision
        ready = Run(
            *(method, model, clients, settings, opened, directory, listeners, final_split),
            layers=around,
            prepared=setup,
        )
        yield ready if interruption is None else replace(ready, interruption=interruption)


def _directory(output: Output, job: Job[Any], also: Mapping[str, str], say: Callable[[str], None]) -> RunDirectory:
    """The run's directory, new or to be gone on with; also: other files that it begins with."""
    directory = RunDirectory(
        *(
            output.path,
            job.method,
            job.model,
            job.clients,
            job.settings,
            output.resume,
            output.config,
            output.say,
            also,
        ),
        stack=job.stack,
    )
    if output.resume and not directory.saves():
        say(f"{output.path}: has no checkpoint to resume from, so it starts from the beginning")
    return directory


def _with_device(engine: EngineRequest) -> EngineRequest:
    """The device that is asked for, found on this machine; an engine that is given has one already."""
    if isinstance(engine.engine, str):
        # Ray's actors find theirs on their own machines.
        return engine if engine.engine == "ray" else replace(engine, compute=engine.compute.resolved())
    if engine.compute != AUTOMATIC:
        raise CoterieError(
            "device, precision, compile, deterministic: the engine that was passed has its own; name the engine "
            "instead, or give these to its constructor",
            code="config-conflict",
        )
    return engine


def _begun(path: Path) -> str | None:
    """The arithmetic of a run to resume; one that does not say is of 0.1, where `sequential` was the default."""
    return recorded_arithmetic(path) or ("sequential" if (path / "run.json").is_file() else None)


def _chosen(
    engine: EngineRequest,
    method: Method[Any],
    model: Model,
    federation: Federation,
    settings: Settings,
    begun: str | None,
    say: Callable[[str], None],
) -> EngineRequest:
    """What `engine: auto` comes to; begun: the arithmetic of the run that is resumed."""
    sizes = Sizes(settings.clients_per_round(len(federation)), settings.rounds)
    choice = chosen("auto", engine.workers, model, federation, local_of(method), sizes, begun, engine.compute)
    assert choice is not None
    say(f"engine: {choice}")
    return replace(engine, engine=choice.name, workers=choice.workers)


@contextmanager
def _opened(request: EngineRequest, model: Model, clients: Clients) -> Iterator[Engine]:
    if isinstance(clients, Federation):
        how = (request.workers, request.address, request.compute, request.gpus)
        with make_engine(request.engine, model, clients, *how) as engine:
            yield engine
        return
    assert not isinstance(request.engine, str), "an engine by name needs the clients' data"
    yield request.engine
