"""A configuration carried out in a directory of its own: what `coterie run` does, for every other command too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from coterie.config import RunConfig, build, resolved
from coterie.driver import drive
from coterie.events import Listener
from coterie.result import Result
from coterie.setup import Job, check, chosen, local_of, make_engine
from coterie.store import RunDirectory
from coterie.threads import one_thread

SHOWN = 12  # names of inputs or classes, where there are more


def execute(
    config: RunConfig,
    path: Path,
    *,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], None] = lambda _: None,
    job: Job | None = None,
) -> Result[Any]:
    """Build everything, check it, and run. `say` is told what the data is and what `engine: auto` came to."""
    job = job or build(config)
    say(job.federation.describe())
    named = {
        "inputs": job.federation.features,
        "left out, having no numbers": job.federation.left_out or None,
        "classes": job.federation.class_names,
    }
    for what, names in named.items():
        if names is not None:  # which columns of a table were taken, and what the numbers of labels mean
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            say(f"{what}: {', '.join(names[:SHOWN])}{more}")
    check(job.model, job.federation, config.settings)
    tree, name, workers = resolved(config, job.method), str(config.engine.name), config.engine.workers
    with one_thread():
        choice = chosen(name, workers, job.model, job.federation, local_of(job.method), config.settings)
    if choice is not None:
        say(f"engine: {choice}")
        # Written down as what it came to, so that the run can be repeated and resumed to the same bits.
        name, workers = choice.name, choice.workers
        tree["engine"] = {"name": name} | ({} if workers is None else {"workers": workers})
    store = RunDirectory(path, job.method, job.model, job.federation, config.settings, resume, tree)
    if resume and not store.saves():
        say(f"{path}: has no checkpoint to go on from, so it begins anew")
    with make_engine(name, job.model, job.federation, workers, config.engine.address) as engine:
        return drive(job.method, job.model, job.federation, config.settings, engine, store, listeners)
