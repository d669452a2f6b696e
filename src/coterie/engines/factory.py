"""The registry of engines: every name, and how that engine is built. Whatever lists engines takes them from here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from coterie.core.errors import CoterieError, suggest
from coterie.core.hardware import cores
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

    @property
    def processes(self) -> int:
        """How many worker processes: no more than clients."""
        return min(self.workers or cores(), len(self.federation))


def _sequential(wanted: EngineSetup) -> Engine:
    if wanted.workers is not None:
        raise CoterieError(
            "engine.workers: the sequential engine has none; write engine.name=workers", code="config-conflict"
        )
    return Sequential(wanted.model, wanted.federation)


def _workers(wanted: EngineSetup) -> Engine:
    return Workers(wanted.model, wanted.federation, wanted.processes)


def _batched(wanted: EngineSetup) -> Engine:
    if wanted.processes == 1:
        return Batched(wanted.model, wanted.federation)
    return Workers(wanted.model, wanted.federation, wanted.processes, batched=True)


def _ray(wanted: EngineSetup) -> Engine:
    from coterie.engines.ray.engine import Ray  # ray is an optional dependency

    return Ray(wanted.model, wanted.federation, wanted.workers, wanted.address, cores())


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
) -> Choice | None:
    """What `engine: auto` comes to, for rounds of so many clients; None for an engine that was named.

    workers: at most so many processes, None for the cores there are. begun: see `auto.choose`.
    """
    return choose(model, federation, local, sizes, workers or cores(), begun) if name == AUTO else None


@contextmanager
def make_engine(
    engine: str | Engine, model: Model, federation: Federation, workers: int | None, address: str | None = None
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
    made = build(EngineSetup(model, federation, workers, address))
    try:
        yield made
    finally:
        made.close()
