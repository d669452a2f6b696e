"""What a run directory says, as values: whole runs for pages, and a few words of each for lists.

Nothing here raises for a damaged directory: it is a status and a problem in words, and what could be read is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.core.text import client_name
from coterie.tools.report import reading, tables
from coterie.tools.report.tables import Absence as Absence
from coterie.tools.report.tables import Clients as Clients
from coterie.tools.report.tables import Curve as Curve
from coterie.tools.report.tables import Recount as Recount
from coterie.tools.report.tables import Sketch as Sketch
from coterie.tools.report.tables import Trail as Trail
from coterie.training import status as run_status
from coterie.training.adversaries import told
from coterie.training.following import recorded

Status = Literal["done", "running", "stopped", "failed", "empty", "broken"]
Split = Literal["test", "validation"]  # of each client's samples, which scores are of
# Seconds: a run whose files changed since is taken to be under way, where no lock tells; rounds may take minutes.
FRESH = 300.0
NOT_RUNS = ("checkpoints", "__pycache__", "node_modules")


@dataclass(frozen=True, eq=False)
class RunRecord:
    """All that a run directory says."""

    path: Path
    name: str
    status: Status
    problem: str | None  # in words, where something could not be read, or why the run was stopped or failed
    config: Mapping[str, Any]
    method: str
    data: str  # a description in words; "" where unknown
    model: str
    seed: int | None
    rounds_wanted: int | None
    rounds_done: int
    started: str | None
    versions: Mapping[str, str]
    curve: Curve
    trail: Trail | None
    clients: Clients | None
    newcomers: Clients | None
    sketch: Sketch | None
    names: Mapping[int, str]  # of the clients that have names
    warnings: tuple[str, ...] = ()  # what is wrong with it though it has ended
    epsilon: Mapping[int, float] = field(default_factory=dict)  # of runs with privacy: what was spent on each client
    attack: str | None = None  # in words, where some of its clients were hostile
    recounts: tuple[Recount, ...] = ()  # numbers of clusters that rules chose, with their reasons
    changes: tuple[int, ...] = ()  # the rounds in which clients' data is not what it was in the round before

    def label(self, client: int) -> str:
        """A client's name, or its number where it has none: for axes and tables."""
        return self.names.get(client, str(client))

    def who(self, client: int) -> str:
        """How a client is called in a sentence."""
        return client_name([self.names[client]], 0) if client in self.names else client_name(None, client)

    @property
    def regression(self) -> bool:
        """Whether it was evaluated, and by loss alone."""
        curve = self.curve.by_round
        return bool(np.isnan(curve.accuracy).all() and not np.isnan(curve.loss).all())

    @property
    def worst_decile(self) -> float | None:
        """How the worst tenth of clients fares on test samples; runs of before say it client by client alone."""
        found = self.curve.last("worst_decile")
        if found is None and self.clients is not None and self.clients.scored_on == "test":
            return self.clients.worst_decile
        return found

    @property
    def seconds(self) -> float:
        """What its rounds took together."""
        return float(np.nansum(self.curve.seconds))


@dataclass(frozen=True)
class RunSummary:
    """A line in a list of runs."""

    path: Path
    name: str
    status: Status
    problem: str | None
    method: str
    data: str  # the data set's name; "" where unknown
    seed: int | None
    rounds_wanted: int | None
    rounds_done: int
    changed: float  # when its files last changed, in seconds since 1970; 0.0 where there are none
    loss: float | None  # of the last evaluation, as the next four
    accuracy: float | None
    macro_f1: float | None
    ari: float | None
    clusters: int | None
    scored_on: Split | None  # which samples these scores are of
    worst_decile: float | None = None


def find_runs(directory: Path | str) -> list[Path]:
    """Every directory in or below this one that holds a config.yaml or a rounds.jsonl, in order of their paths."""
    found, waiting = [], [Path(directory)]
    while waiting:
        here = waiting.pop()
        is_run = False
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.name in ("config.yaml", "rounds.jsonl"):
                        is_run = True
                    elif entry.name[0] != "." and entry.name not in NOT_RUNS and entry.is_dir(follow_symlinks=False):
                        waiting.append(here / entry.name)
        except OSError:
            continue
        if is_run:
            found.append(here)
    return sorted(found)


def read_run(path: Path | str, fresh: float = FRESH) -> RunRecord:
    """All that a run directory says. Where no lock tells, one that changed within `fresh` seconds is under way."""
    path = Path(path)
    config, about = reading.read_yaml(path / "config.yaml"), reading.read_json(path / "run.json")
    lines, trail = reading.read_lines(path / "rounds.jsonl"), reading.read_lines(path / "trace.jsonl")
    clients, newcomers = (reading.read_json(path / f"{name}.json") for name in ("clients", "newcomers"))
    curve, table = tables.as_curve(lines.value), tables.as_clients(clients.value)
    rounds_done = int(curve.round[-1]) if len(curve.round) else 0
    wanted = reading.positive(reading.mapping(config.value).get("rounds"))
    problems = [found.problem for found in (config, about, lines, trail, clients, newcomers) if found.problem]
    if clients.value is not None and table is None:
        problems.append("clients.json holds no table of clients")
    if lines.value and not len(curve.round):
        problems.append("rounds.jsonl holds no rounds")
    if config.value is None and config.problem is None and lines.value:
        problems.append("there is no config.yaml")
    problem = _nothing_there(path) or "; ".join(problems) or None
    status, problem = _status(path, problem, table is not None, rounds_done, wanted, fresh)
    belongs = reading.mapping(reading.mapping(about.value).get("belongs"))
    settings = reading.mapping(config.value)
    seed = reading.whole(settings.get("seed"))
    versions = reading.mapping(reading.mapping(about.value).get("versions"))
    return RunRecord(
        path=path,
        name=_name(path),
        status=status,
        problem=problem,
        config=settings,
        method=_method(settings),
        data=(reading.text(belongs.get("data")) or _data(settings)).split(", checksum ")[0],
        model=reading.text(belongs.get("model")) or "",
        seed=reading.whole(reading.mapping(about.value).get("seed")) if seed is None else seed,
        rounds_wanted=wanted,
        rounds_done=rounds_done,
        started=reading.text(reading.mapping(about.value).get("started")),
        versions={name: str(value) for name, value in versions.items()},
        curve=curve,
        trail=tables.as_trail(trail.value),
        clients=table,
        newcomers=tables.as_clients(newcomers.value),
        sketch=tables.read_sketch(path),
        names=tables.read_names(path) | tables.names_in(clients.value) | tables.names_in(newcomers.value),
        warnings=read_warnings(path),
        epsilon=_epsilon(path),
        attack=told(path, settings),
        recounts=tables.as_recounts(lines.value),
        changes=recorded(path),
    )


def _epsilon(path: Path) -> dict[int, float]:
    """privacy.json; nothing where there is none, or where there was no noise."""
    found = reading.mapping(reading.mapping(reading.read_json(path / "privacy.json").value).get("clients"))
    return {int(k): float(v) for k, v in found.items() if k.isdigit() and isinstance(v, int | float)}


def read_warnings(path: Path) -> tuple[str, ...]:
    """warnings.json; nothing where there is none."""
    found = reading.read_json(path / "warnings.json").value
    return tuple(text for text in found if isinstance(text, str)) if isinstance(found, list) else ()


def read_summary(path: Path | str, fresh: float = FRESH) -> RunSummary:
    """A line about a run: its configuration, and the end of its rounds."""
    path = Path(path)
    config = reading.read_yaml(path / "config.yaml")
    settings = reading.mapping(config.value)
    done, scores = 0, dict[str, Any]()
    scored_on: Split | None = None
    for line in reading.lines_from_the_end(path / "rounds.jsonl"):
        done = done or reading.positive(line.get("round")) or 0
        if "loss" in line:
            scores, scored_on = line, "test"
        elif isinstance(line.get("validation"), dict):
            scores, scored_on = line["validation"], "validation"
        if scores:
            break
    wanted = reading.positive(settings.get("rounds"))
    problem = config.problem
    if not settings and problem is None and done:
        problem = "there is no config.yaml"
    problem = _nothing_there(path) or problem
    status, problem = _status(path, problem, (path / "clients.json").is_file(), done, wanted, fresh)
    loss, accuracy, macro_f1, ari = (_or_none(scores.get(key)) for key in ("loss", "accuracy", "macro_f1", "ari"))
    return RunSummary(
        path=path,
        name=_name(path),
        status=status,
        problem=problem,
        method=_method(settings),
        data=_data(settings),
        seed=reading.whole(settings.get("seed")),
        rounds_wanted=wanted,
        rounds_done=done,
        changed=_changed(path),
        loss=loss,
        accuracy=accuracy,
        macro_f1=macro_f1,
        ari=ari,
        clusters=reading.whole(scores.get("clusters")),
        scored_on=scored_on,
        worst_decile=_or_none(scores.get("worst_decile")),
    )


def _name(path: Path) -> str:
    """The last two parts of its path tell most runs apart."""
    parts = path.absolute().parts[1:]
    return "/".join(parts[-2:]) or str(path)


def _nothing_there(path: Path) -> str | None:
    try:
        if not path.exists():
            return "there is no such directory"
        if not path.is_dir():
            return "this is a file, no run directory"
    except OSError:
        return "this cannot be read"
    return None if _changed(path) else "there is no run in this directory"


def _changed(path: Path) -> float:
    times = [0.0]
    for name in ("rounds.jsonl", "config.yaml", "clients.json"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)


def _status(
    path: Path, problem: str | None, table: bool, done: int, wanted: int | None, fresh: float
) -> tuple[Status, str | None]:
    """How the run stands, and what is wrong with it."""
    if not _changed(path):
        return ("broken" if path.is_file() else "empty"), problem
    status, why = under_way(path, fresh)
    if problem is not None:
        return "broken", "; ".join(filter(None, (problem, why)))
    found = run_status.read(path)
    ended = found is not None and found.state == "done"  # which it may be before its last round (stop_after)
    if status != "failed" and table and (wanted is None or done >= wanted or ended):
        return "done", None
    return status, why


def under_way(path: Path, fresh: float = FRESH) -> tuple[Status, str | None]:
    """Whether a process is at work on a run that has not come to its end; if none is, why."""
    found = run_status.read(path)
    if found is not None and found.state in ("stopped", "failed"):
        return found.state, found.reason
    if found is not None and found.alive:
        return "running", None
    return ("running" if time.time() - _changed(path) <= fresh else "stopped"), None


def _method(config: Mapping[str, Any]) -> str:
    method = config.get("method")
    if isinstance(method, dict):
        method = method.get("name")
    return method.split("(")[0] if isinstance(method, str) and method else "unknown"


def _data(config: Mapping[str, Any]) -> str:
    return reading.text(reading.mapping(config.get("data")).get("name")) or ""


def _or_none(value: Any) -> float | None:
    found = reading.number(value)
    return None if np.isnan(found) else found
