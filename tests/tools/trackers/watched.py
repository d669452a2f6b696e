"""A small run to be tracked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.training.build import build
from coterie.training.config import read
from coterie.training.events import Listener
from coterie.training.result import Result
from coterie.training.run import run

CONFIG = {"method": {"name": "wecfl", "k": 2}, "rounds": 4, "data": {"partition": {"angles": [0, 90]}}}


def tracked(
    listeners: Sequence[Listener], rounds: int = 4, out: Path | None = None, resume: bool = False
) -> Result[Any]:
    """Eight clients, evaluated in every second round."""
    job = build(read(None, ["data.partition.clients=8", "local.epochs=1", "method=wecfl", "method.k=2"]))
    settings: dict[str, Any] = {"rounds": rounds, "evaluate_every": 2, "checkpoint_every": 2, "out": out}
    return run(job.method, job.federation, job.model, listeners=listeners, resume=resume, **settings)


def fails(*_: object) -> None:
    """A listener that ends a run."""
    raise RuntimeError("the run fails")
