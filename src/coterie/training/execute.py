"""Run a configuration in a directory: what `coterie run` does, and every other command that trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from coterie.core.processes import Interruption
from coterie.data.federation import Federation
from coterie.training import lineage
from coterie.training.assembly import EngineRequest, Output, assemble
from coterie.training.build import Components, build, build_addition, resolved
from coterie.training.config import RunConfig
from coterie.training.evaluation import ScoredSplit
from coterie.training.events import Listener
from coterie.training.loop import train
from coterie.training.result import Result
from coterie.training.run_directory import check_directory
from coterie.training.trust import with_attack

SHOWN = 12  # names of inputs or classes, if there are more


def execute(
    config: RunConfig,
    path: Path,
    *,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], None] = lambda _: None,
    components: Components | None = None,
    final_split: ScoredSplit = "test",
    interruption: Interruption | None = None,
) -> Result[Any]:
    """Build what the configuration names and train.

    say: called with a description of the data and the engine that `auto` chose. components: what was built already.
    interruption: a wish to stop, which waits until the round is over and saved.
    """
    check_directory(path, resume)  # before data is read
    made = components or build(config)
    if resume:
        made = replace(made, federation=as_it_is_now(path, made.federation, config))
    _describe(made.federation, say)
    with assemble(
        *(made.method, made.model, made.federation, with_attack(config.settings, config.consent)),
        engine_request(config),
        Output(path, resume, resolved(config, made.method), say),
        listeners=listeners,
        final_split=final_split,
        say=say,
        interruption=interruption,
    ) as run:
        return train(run)


def engine_request(config: RunConfig) -> EngineRequest:
    """The engine of a configuration, and the device that it computes on."""
    engine = config.engine
    return EngineRequest(str(engine.name), engine.workers, engine.address, config.compute, engine.num_gpus)


def as_it_is_now(path: Path, began: Federation, config: RunConfig, clients: int | None = None) -> Federation:
    """The data of a run, with the clients that were added since it began and without those that were forgotten."""
    return lineage.applied(lineage.read(path), began, partial(build_addition, config), clients)


def _describe(federation: Federation, say: Callable[[str], None]) -> None:
    """Which columns of a table are inputs, and what the numbers of labels mean."""
    say(federation.describe())
    for remark in federation.remarks:
        say(remark)
    for what, names in {"inputs": federation.features, "classes": federation.class_names}.items():
        if names is not None:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            say(f"{what}: {', '.join(names[:SHOWN])}{more}")
