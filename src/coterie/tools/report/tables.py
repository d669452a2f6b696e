"""The tables of a run directory as columns of numbers: rounds, who was where in each, clients, sketches of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.metrics import worst_decile
from coterie.tools.report import reading
from coterie.tools.report.reading import Floats, Ints
from coterie.training import round_format


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
    kept = [
        line | {"clusterability": round_format.clusterability(line)} | _spent(line)
        for line in (by_round[n] for n in rounds)
    ]
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


def _spent(line: dict[str, Any]) -> dict[str, Any]:
    """What privacy has cost by a round; nothing where that is infinite."""
    spent = reading.mapping(line.get("privacy"))
    clients = spent.get("clients")
    found = [one[0] for one in clients if isinstance(one, list) and one] if isinstance(clients, list) else []
    return {"epsilon": spent.get("epsilon"), "epsilon_least": found[-1] if found else None}


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
