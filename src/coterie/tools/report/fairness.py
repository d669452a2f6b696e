"""Runs beside the one in which every client trains alone: the method `local` in the same circumstances."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.metrics import AgainstLocal, against_local
from coterie.tools.report import reading, tables
from coterie.tools.report.record import RunRecord

LOCAL = "local"  # the method
NEEDS_LOCAL = "Gain over local and worse than local need runs of the method local with the same settings."
FREE = ("method", "engine", "checkpoint_every")  # in which a run and its `local` may differ


def circumstances(config: Mapping[str, Any], also: Iterable[str] = ()) -> str:
    """Seed, data, model and budget of a run as one text: everything but the method. also: what config does not say."""
    told = {key: value for key, value in config.items() if key not in FREE}
    return json.dumps([told, *also], sort_keys=True, default=str)


def of_record(record: RunRecord) -> str:
    """A run's circumstances; a run made in Python does not have its data and model in its configuration."""
    return circumstances(record.config, () if "data" in record.config else (record.data, record.model))


def alone(records: Iterable[RunRecord]) -> dict[str, RunRecord]:
    """The finished runs of the method `local`, by their circumstances."""
    return {of_record(r): r for r in records if r.method.lower() == LOCAL and r.clients is not None}


def beside(record: RunRecord, alone: Mapping[str, RunRecord]) -> AgainstLocal | None:
    """A run against its clients alone; None where there is no such run, and for `local` itself."""
    other = alone.get(of_record(record))
    if other is None or other is record:
        return None
    return compared(record.clients, other.clients)


def beside_directory(run: Path, other: Path) -> AgainstLocal | None:
    """The same for two run directories."""
    return compared(*(tables.as_clients(reading.read_json(path / "clients.json").value) for path in (run, other)))


def compared(mine: tables.Clients | None, other: tables.Clients | None) -> AgainstLocal | None:
    """Client by client, by accuracy or, for regression, by loss."""
    if mine is None or other is None or mine.scored_on != other.scored_on:
        return None
    regression = bool(np.isnan(mine.accuracy).all())
    mine_, theirs = (
        dict(zip(table.ids.tolist(), (table.loss if regression else table.accuracy).tolist(), strict=True))
        for table in (mine, other)
    )
    return against_local(mine_, theirs, higher_is_better=not regression)
