"""Which engine carries visits to clients: the rule of `auto`, and engines by name.

`engine: auto` is a rule that looks at the model and at sizes, never at a clock.

How clients' numbers are rounded (`arithmetic`) follows from the model and the size of the clients alone, so the same
configuration gives the same bits on every machine. The number of processes follows from the work of the run and from
the cores there are; it changes no bits.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from coterie.client.batched.dense import layers_of
from coterie.client.batched.forward import stack_models
from coterie.client.lanes.program import program_of
from coterie.core.compute import HOST, Compute, cores, determinism
from coterie.core.errors import CoterieError, suggest
from coterie.core.model import Model
from coterie.core.tasks import Local
from coterie.data.federation import Federation
from coterie.engines.batched import Batched
from coterie.engines.contract import Engine
from coterie.engines.sequential import Sequential
from coterie.engines.workers import Workers

LARGE = 1 << 25  # bytes of a client's training samples: beyond, copies of many clients' samples are not made
WORTH = 2e10  # multiply-adds of a whole run, from which on other processes are worth starting: a few seconds
ROUND = 1e9  # ... of a round: below, what goes to other processes and back takes as long as they save
STEP_TOGETHER = 1e5  # what a step costs beside its multiply-adds, in multiply-adds, where clients train together ...
STEP_ALONE = 1e6  # ... and where they train one by one
USES = 10  # how often a sample uses each number of a network with convolutions: LeNet and the common CNNs, 7 to 10


@dataclass(frozen=True)
class Choice:
    """An engine, and why."""

    name: str
    workers: int | None
    why: str

    def __str__(self) -> str:
        many = "" if self.workers is None else f", {self.workers} process{'es' if self.workers != 1 else ''}"
        return f"{self.name}{many} ({self.why})"


@dataclass(frozen=True)
class Sizes:
    """How much a run computes: clients that train in a round, and rounds."""

    per_round: int
    rounds: int = 1


def choose(
    model: Model, federation: Federation, local: Local, sizes: Sizes, cores: int, begun: str | None = None
) -> Choice:
    """The engine for a run. begun: the arithmetic that the run began with, if it is resumed."""
    arithmetic, why = _arithmetic(model, federation)
    if begun in ("batched", "sequential") and begun != arithmetic:
        arithmetic, why = begun, "as the run began"
    whole = work(model, federation, local, sizes)
    large = whole >= WORTH and whole >= ROUND * sizes.rounds
    many = min(cores, sizes.per_round) if large and _may_fork() else 1
    if arithmetic == "batched":
        return Choice("batched", many, why)
    return Choice("workers", many, why) if many > 1 else Choice("sequential", None, why)


def _arithmetic(model: Model, federation: Federation) -> tuple[str, str]:
    """How clients are computed, and why: together wherever the network and the memory allow it."""
    largest = int(federation.roster.n.max()) * math.prod(federation.input_shape) * 4
    if largest > LARGE:
        return "sequential", "clients with much data are computed one by one"
    if layers_of(model) is not None:
        return "batched", "dense layers: clients are trained together"
    if program_of(model, federation.input_shape, 1) is not None:
        return "batched", "small convolutions: samples are computed side by side"
    if stack_models(model) is not None:
        return "batched", "convolutions in a row: clients' models are scored together"
    return "sequential", "the network's layers can only be computed one client at a time"


def work(model: Model, federation: Federation, local: Local, sizes: Sizes) -> float:
    """About how many multiply-adds the local training of all rounds takes."""
    n = float(federation.roster.n.float().mean())
    batch = n if local.batch == "full" else min(float(local.batch), n)
    steps = local.steps or (local.epochs or 1) * max(1.0, n / batch)
    dense = layers_of(model) is not None
    used = model.parameters + model.frozen_size
    per_sample = 3.0 * used * (1 if dense else USES)  # forward, and twice backward
    per_step = (STEP_TOGETHER if dense else STEP_ALONE) + batch * per_sample
    return sizes.rounds * sizes.per_round * steps * per_step


def _may_fork() -> bool:
    """Whether processes can be started without asking anything of the user's program.

    Outside Linux they import the user's script again, and a pool's own process may not start any.
    """
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


EngineName: TypeAlias = Literal["sequential", "workers", "batched", "ray", "auto"]
AUTO: EngineName = "auto"  # not an engine: one of the others, by the rule of `engines.auto`


@dataclass(frozen=True, eq=False)
class EngineSetup:
    """What an engine is built from; workers: processes, None for as many as there are cores."""

    model: Model
    federation: Federation
    workers: int | None
    address: str | None = None  # of a Ray cluster
    compute: Compute = HOST  # with a device that is there; of Ray's actors, as it was asked for
    gpus: float | None = None  # of a GPU for each of Ray's actors

    @property
    def processes(self) -> int:
        """How many worker processes: no more than clients."""
        return min(self.workers or cores(), len(self.federation))


def _sequential(wanted: EngineSetup) -> Engine:
    if wanted.workers is not None:
        raise CoterieError(
            "engine.workers: the sequential engine has none; write engine.name=workers", code="config-conflict"
        )
    return Sequential(wanted.model, wanted.federation, compute=wanted.compute)


def _workers(wanted: EngineSetup) -> Engine:
    return Workers(wanted.model, wanted.federation, wanted.processes, compute=wanted.compute)


def _batched(wanted: EngineSetup) -> Engine:
    # One process keeps an accelerator busy where clients are computed together.
    if wanted.processes == 1 or (wanted.workers is None and wanted.compute.accelerated):
        return Batched(wanted.model, wanted.federation, wanted.compute)
    return Workers(wanted.model, wanted.federation, wanted.processes, batched=True, compute=wanted.compute)


def _ray(wanted: EngineSetup) -> Engine:
    from coterie.engines.ray.engine import (
        ActorResources,
        Ray,  # ray is an optional dependency
    )

    actors = ActorResources(wanted.workers, cores(), wanted.gpus)
    return Ray(wanted.model, wanted.federation, actors, wanted.address, wanted.compute)


ENGINES: Mapping[EngineName, Callable[[EngineSetup], Engine]] = {
    "sequential": _sequential,
    "workers": _workers,
    "batched": _batched,
    "ray": _ray,
}


def local_of(method: Any) -> Local:
    """How a method has clients train, or the one it wraps."""
    found = getattr(method, "local", None) or getattr(getattr(method, "base", None), "local", None)
    return found if isinstance(found, Local) else Local()


def chosen(
    name: str,
    workers: int | None,
    model: Model,
    federation: Federation,
    local: Local,
    sizes: Sizes,
    begun: str | None = None,
    compute: Compute = HOST,
) -> Choice | None:
    """What `engine: auto` comes to, for rounds of so many clients; None for an engine that was named.

    workers: at most so many processes, None for the cores there are; on an accelerator for one. begun: see
    `auto.choose`.
    """
    if name != AUTO:
        return None
    most = workers or (1 if compute.accelerated else cores())
    return choose(model, federation, local, sizes, most, begun)


@contextmanager
def make_engine(
    engine: str | Engine,
    model: Model,
    federation: Federation,
    workers: int | None,
    address: str | None = None,
    compute: Compute = HOST,
    gpus: float | None = None,
) -> Iterator[Engine]:
    """An engine by name, closed afterwards; an engine object is used as it is and left open."""
    if not isinstance(engine, str):
        yield engine
        return
    if workers is not None and workers < 1:
        raise CoterieError(f"engine.workers: at least 1, not {workers}", code="config-invalid-value")
    build = next((build for name, build in ENGINES.items() if name == engine), None)
    if build is None:
        raise CoterieError(
            f"engine.name: unknown engine '{engine}'.{suggest(engine, [*ENGINES, AUTO])}", code="config-unknown-name"
        )
    compute = compute if engine == "ray" else compute.resolved()  # Ray's actors have devices of their own
    with determinism(compute.deterministic):
        made = build(EngineSetup(model, federation, workers, address, compute, gpus))
        try:
            yield made
        finally:
            made.close()
