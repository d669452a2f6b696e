"""What a run directory says, as values: whole runs for pages, and a few words of each for lists.

Nothing here raises for a damaged directory: it is a status and a problem in words, and what could be read is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.core.metrics import worst_decile
from coterie.core.text import client_name
from coterie.layers.attack import told
from coterie.tools.report import reading
from coterie.tools.report.reading import Floats, Ints
from coterie.training import status as run_status
from coterie.training.drift_scores import recorded


@dataclass(frozen=True)
class Absence:
    """A client that was missing in a round, or could not be evaluated after it."""

    round: int
    client: int
    reason: str


@dataclass(frozen=True)
class Recount:
    """A number of clusters that a rule chose in a round, or clients that it moved, and why."""

    round: int
    k: int
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"k = {self.k} by {self.rule}: {self.reason}"


@dataclass(frozen=True, eq=False)
class Curve:
    """rounds.jsonl as columns, one entry per round; NaN where a round was not evaluated or says nothing."""

    round: Ints
    asked: Floats
    answered: Floats
    attempts: Floats
    seconds: Floats
    client_seconds: Floats
    bytes_down: Floats
    bytes_up: Floats
    loss: Floats
    accuracy: Floats
    macro_f1: Floats
    clusters: Floats
    ari: Floats
    nmi: Floats
    mixture_error: Floats
    discrepancy: Floats
    clusterability: Floats
    rmse: Floats  # of regressions, as the next three
    mae: Floats
    r2: Floats
    constant: Floats  # the squared error of the constant predictor
    worst_decile: Floats  # accuracy of the worst tenth of clients, their loss for regression; NaN in runs of before
    epsilon: Floats  # of runs with privacy: what was spent on the client on which most was, and least
    epsilon_least: Floats
    sizes: tuple[tuple[int, ...], ...]  # empty where a round was not evaluated
    missing: tuple[Absence, ...]
    unscored: tuple[Absence, ...]
    validation: Curve | None = None  # the rounds that were scored on validation samples, where the run validates

    @property
    def by_round(self) -> Curve:
        """The scores of rounds: on validation samples where the run validates, which is tested once, at the end."""
        return self if self.validation is None else self.validation

    def last(self, column: str) -> float | None:
        """The last value of a column that there is."""
        values: Floats = getattr(self, column)
        there = values[~np.isnan(values)]
        return float(there[-1]) if len(there) else None

    def latest(self, column: str) -> float | None:
        """The last value on test samples or, before there is one, on validation samples."""
        found = self.last(column)
        return self.by_round.last(column) if found is None else found

    @property
    def last_sizes(self) -> tuple[int, ...]:
        """Clients per cluster at the last evaluation."""
        found: tuple[int, ...] = next((sizes for sizes in reversed(self.sizes) if sizes), ())
        return found if found or self.validation is None else self.validation.last_sizes


@dataclass(frozen=True, eq=False)
class Trail:
    """trace.jsonl as matrices (evaluated rounds, watched clients): cluster -1 and NaN where a client was not there."""

    ids: Ints
    round: Ints
    cluster: Ints
    accuracy: Floats | None  # None for regression
    macro_f1: Floats | None
    loss: Floats | None  # None for classification


@dataclass(frozen=True, eq=False)
class Clients:
    """clients.json or newcomers.json as columns, one entry per client."""

    ids: Ints
    names: tuple[str, ...]  # the id where a client has no name
    cluster: Ints
    hidden: Ints | None  # the true cluster, where it is known
    samples: Floats
    loss: Floats
    accuracy: Floats
    macro_f1: Floats
    rmse: Floats  # of regressions, as the next three
    mae: Floats
    r2: Floats
    constant: Floats  # the squared error of the constant predictor
    shares: Floats | None  # (n, K) of soft methods
    mixture: Floats | None  # (n, S) the true shares
    scored_on: str = "test"  # or "validation": the samples that scores are of; files of before do not say

    @property
    def worst_decile(self) -> float | None:
        """The mean accuracy of the worst tenth, or their mean loss for regression."""
        if np.isnan(self.accuracy).all():
            return worst_decile(self.loss, higher_is_better=False)
        return worst_decile(self.accuracy)


@dataclass(frozen=True, eq=False)
class Sketch:
    """sketch.safetensors: models of clients (n, 256) and of clusters (K, 256), their angles preserved."""

    ids: Ints
    vectors: Floats
    round: Ints  # in which each was trained; 0 is never
    centers: Floats


def as_curve(lines: list[dict[str, Any]]) -> Curve:
    """rounds.jsonl; of a round that is there twice, the last."""
    curve = _columns(lines)
    validated = [
        {"round": line.get("round")} | line["validation"] for line in lines if isinstance(line.get("validation"), dict)
    ]
    return replace(curve, validation=_columns(validated)) if validated else curve


def _columns(lines: list[dict[str, Any]]) -> Curve:
    by_round = {number: line for line in lines if (number := reading.positive(line.get("round"))) is not None}
    rounds = sorted(by_round)
    kept = [line | _of_layers(reading.mapping(line.get("layers"))) for line in (by_round[n] for n in rounds)]
    lists = ("round", "sizes", "missing", "unscored", "validation")
    columns: dict[str, Any] = {
        field.name: reading.numbers([line.get(field.name) for line in kept], len(kept))
        for field in fields(Curve)
        if field.name not in lists
    }
    return Curve(
        round=np.array(rounds, dtype=np.int64),
        **columns,
        sizes=tuple(_sizes(line.get("sizes")) for line in kept),
        missing=tuple(a for r, line in zip(rounds, kept, strict=True) for a in _absences(r, line.get("missing"))),
        unscored=tuple(a for r, line in zip(rounds, kept, strict=True) for a in _absences(r, line.get("unscored"))),
    )


def _of_layers(said: Mapping[str, Any]) -> dict[str, Any]:
    """The bytes of a round, and what privacy has cost by then; nothing where that is infinite."""
    traffic, spent = reading.mapping(said.get("traffic")), reading.mapping(said.get("privacy"))
    clients = spent.get("clients")
    found = [one[0] for one in clients if isinstance(one, list) and one] if isinstance(clients, list) else []
    return {
        "bytes_down": traffic.get("down"),
        "bytes_up": traffic.get("up"),
        "epsilon": spent.get("epsilon"),
        "epsilon_least": found[-1] if found else None,
    }


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(v for v in map(reading.whole, value) if v is not None) if isinstance(value, list) else ()


def _absences(round_: int, value: Any) -> list[Absence]:
    rows = map(reading.mapping, value) if isinstance(value, list) else ()
    found = ((reading.whole(row.get("client")), row.get("reason")) for row in rows)
    return [Absence(round_, client, str(reason)) for client, reason in found if client is not None]


def as_recounts(lines: list[dict[str, Any]]) -> tuple[Recount, ...]:
    """What rounds.jsonl says about numbers of clusters that were chosen; older lines have one of a round alone."""
    by_round = {number: line for line in lines if (number := reading.positive(line.get("round"))) is not None}
    found = []
    for number, line in sorted(by_round.items()):
        every = line.get("counted")
        for one in map(reading.mapping, every if isinstance(every, list) else [every]):
            k, rule, reason = (
                reading.whole(one.get("k")),
                reading.text(one.get("rule")),
                reading.text(one.get("reason")),
            )
            if k is not None and rule is not None and reason is not None:
                found.append(Recount(number, k, rule, reason))
    return tuple(found)


def as_trail(lines: list[dict[str, Any]]) -> Trail | None:
    """trace.jsonl; None where it says nothing."""
    ids: list[Any] = next((line["ids"] for line in lines if isinstance(line.get("ids"), list)), [])
    found = reading.wholes(ids, len(ids))
    by_round = {number: line for line in lines if (number := reading.positive(line.get("round"))) is not None}
    if not len(found) or not by_round:
        return None
    rounds = sorted(by_round)

    def matrix(name: str) -> Floats | None:
        rows = np.stack([reading.numbers(by_round[r].get(name), len(found)) for r in rounds])
        return None if np.isnan(rows).all() else rows

    return Trail(
        ids=found,
        round=np.array(rounds, dtype=np.int64),
        cluster=np.stack([reading.wholes(by_round[r].get("cluster"), len(found)) for r in rounds]),
        accuracy=matrix("accuracy"),
        macro_f1=matrix("macro_f1"),
        loss=matrix("loss"),
    )


def as_clients(value: Any) -> Clients | None:
    """clients.json or newcomers.json; None where there are no clients in it."""
    rows = [reading.mapping(row) for row in value] if isinstance(value, list) else []
    rows = [row for row in rows if reading.whole(row.get("client")) is not None]
    if not rows:
        return None
    count = len(rows)
    hidden = reading.wholes([row.get("hidden") for row in rows], count)
    scores = {
        key: reading.numbers([row.get(key) for row in rows], count)
        for key in ("samples", "loss", "accuracy", "macro_f1", "rmse", "mae", "r2", "constant")
    }
    return Clients(
        ids=reading.wholes([row["client"] for row in rows], count),
        names=tuple(str(row.get("name", row["client"])) for row in rows),
        cluster=reading.wholes([row.get("cluster") for row in rows], count),
        hidden=None if (hidden < 0).any() else hidden,
        **scores,
        shares=_weights(rows, "shares"),
        mixture=_weights(rows, "mixture"),
        scored_on="validation" if rows[0].get("scored_on") == "validation" else "test",
    )


def names_in(value: Any) -> dict[int, str]:
    """The names of clients in clients.json or newcomers.json, by their numbers."""
    rows = map(reading.mapping, value) if isinstance(value, list) else ()
    found = ((reading.whole(row.get("client")), row.get("name")) for row in rows)
    return {client: name for client, name in found if client is not None and isinstance(name, str)}


def read_names(path: Path) -> dict[int, str]:
    """The names of all clients: in serving.json, or in members.json of a run over a network; also before its end."""
    data = reading.mapping(reading.mapping(reading.read_json(path / "serving.json").value).get("data"))
    names = data.get("names")
    if names is None:
        rows = reading.mapping(reading.read_json(path / "members.json").value).get("members")
        names = [reading.mapping(row).get("name") for row in rows] if isinstance(rows, list) else []
    return {i: name for i, name in enumerate(names) if isinstance(name, str)} if isinstance(names, list) else {}


def _weights(rows: list[Mapping[str, Any]], key: str) -> Floats | None:
    """(n, K), where every client has as many of them."""
    first = rows[0].get(key)
    if not isinstance(first, list) or not first:
        return None
    found = np.stack([reading.numbers(row.get(key), len(first)) for row in rows])
    return None if np.isnan(found).any() else found


def read_sketch(path: Path) -> Sketch | None:
    """sketch.safetensors; None where there is none, or it cannot be read."""
    import safetensors.numpy as safetensors
    from safetensors import SafetensorError

    found: dict[str, NDArray[Any]]
    try:
        found = safetensors.load_file(path / "sketch.safetensors")
        ids, vectors, round_, centers = (found[key] for key in ("ids", "sketch", "round", "centers"))
    except (OSError, SafetensorError, KeyError):
        return None
    rows = len(ids)
    good = vectors.ndim == centers.ndim == 2 and len(vectors) == len(round_) == rows
    if not good or ids.ndim != 1 or vectors.shape[1] != centers.shape[1]:
        return None
    return Sketch(
        ids=ids.astype(np.int64),
        vectors=np.nan_to_num(vectors.astype(np.float64), posinf=0.0, neginf=0.0),
        round=round_.astype(np.int64),
        centers=np.nan_to_num(centers.astype(np.float64), posinf=0.0, neginf=0.0),
    )


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
    curve, table = as_curve(lines.value), as_clients(clients.value)
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
        trail=as_trail(trail.value),
        clients=table,
        newcomers=as_clients(newcomers.value),
        sketch=read_sketch(path),
        names=read_names(path) | names_in(clients.value) | names_in(newcomers.value),
        warnings=read_warnings(path),
        epsilon=_epsilon(path),
        attack=told(path, settings),
        recounts=as_recounts(lines.value),
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
