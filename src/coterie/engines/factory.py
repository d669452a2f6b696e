"""The registry of engines: every name, and how that engine is built. Whatever lists engines takes them from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from coterie.core.compute import HOST, Compute, cores, determinism
from coterie.core.errors import CoterieError, suggest
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.data.federation import Federation
from coterie.engines.auto import Choice, Sizes, choose
from coterie.engines.batched import Batched
from coterie.engines.contract import Engine
from coterie.engines.sequential import Sequential
from coterie.engines.workers import Workers

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
    from coterie.engines.ray.engine import Ray  # ray is an optional dependency
    from coterie.engines.ray.resources import ActorResources

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
