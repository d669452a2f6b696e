"""What is known of the clients of a finished run and of its clusters: from a result, or from files alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.core.decoder import DecodeError, parse_json
from coterie.core.files import check_run_files
from coterie.core.tasks import Evaluated
from coterie.insight.explain import cluster_models
from coterie.layers.attack import told
from coterie.serving.assign import clustered, method_name
from coterie.training.config import read_file
from coterie.training.result import Result
from coterie.training.sketches import read_sketch


@dataclass(frozen=True)
class ClientRecord:
    """A client after the last evaluation."""

    client: int
    name: str | None
    cluster: int
    samples: int
    accuracy: float | None  # None for regression
    loss: float | None
    shares: tuple[float, ...] | None = None
    distances: tuple[float, ...] | None = None  # of its model as last trained from each cluster's model
    newcomer: bool = False

    def score(self, metric: Literal["accuracy", "loss"]) -> float | None:
        """Accuracy or loss; None where it has no samples."""
        return (self.accuracy if metric == "accuracy" else self.loss) if self.samples else None

    def error(self, metric: Literal["accuracy", "loss"]) -> float | None:
        """The same, such that less is better."""
        score = self.score(metric)
        return score if score is None or metric == "loss" else 1 - score

    def spread(self, metric: Literal["accuracy", "loss"]) -> float:
        """The standard deviation of its errors on single samples: exact for accuracy, as of normal errors for loss."""
        error = self.error(metric) or 0.0
        if metric == "loss":
            return error * math.sqrt(2)
        return math.sqrt(error * (1 - error) * self.samples / max(self.samples - 1, 1))


@dataclass(frozen=True, eq=False)
class RunFacts:
    """A run."""

    method: str
    clustered: bool | None
    clients: tuple[ClientRecord, ...]
    models: NDArray[np.float64] | None  # (K, P) of the clusters, or sketches of them
    measured_by: Literal["models", "sketches"]
    unplaced: int
    note: str = ""
    attack: str | None = None  # in words, where some of its clients were hostile


def facts_of_result(result: Result[Any]) -> RunFacts:
    """Of a result, in memory or read back."""
    state = result.state if result.placed is None else result.placed
    task = result.method.predictor(state)
    has = clustered(task)
    models = cluster_models(task) if has else None
    names = result.known.names
    sketches = _sketched_distances(result.run_dir) if has else {}
    clients = _records(result.clients, names, sketches, False)
    if result.newcomers is not None:
        clients += _records(result.newcomers.clients, names, {}, True)
    found = None if models is None else models[0].double().numpy()
    method, unplaced = method_name(result), len(result.known) - len(clients)
    attack = None if result.attack is None else str(result.attack)
    hostile = 0 if result.attack is None else len(result.attack.hostile)  # who are never evaluated
    ordered = tuple(sorted(clients, key=_by_id))
    return RunFacts(method, has, ordered, found, "models", max(unplaced - hostile, 0), attack=attack)


def _by_id(one: ClientRecord) -> int:
    return one.client


def _records(
    reply: Evaluated, names: Sequence[str] | None, sketches: Mapping[int, tuple[float, ...]], newcomer: bool
) -> list[ClientRecord]:
    ids = reply.ids.tolist()
    places = [0] * len(ids) if reply.choice is None else reply.choice.tolist()
    return [
        ClientRecord(
            *(client, None if names is None else names[client], place, int(reply.n[i])),
            *(_number(float(reply.accuracy[i])), _number(float(reply.loss[i]))),
            None if reply.shares is None else tuple(reply.shares[i].tolist()),
            sketches.get(client),
            newcomer,
        )
        for i, (client, place) in enumerate(zip(ids, places, strict=True))
    ]


def facts_of_files(path: Path, why: str) -> RunFacts | None:
    """Of a run directory that cannot be loaded (its training data or its code is not here); None: it says too little.

    why: the reason.
    """
    check_run_files(path)
    rows, new = (_rows(path / name) for name in ("clients.json", "newcomers.json"))
    if not rows:
        return None
    sketches, found = _sketched_distances(path), read_sketch(path)
    config = read_file(path / "config.yaml") if (path / "config.yaml").is_file() else {}
    method = config.get("method")
    clients = [*_of_rows(rows, sketches, False), *_of_rows(new, {}, True)]
    several = len({one.cluster for one in clients}) > 1 or any(one.shares is not None for one in clients)
    centers = None if found is None or not len(found["centers"]) else found["centers"].astype(np.float64)
    return RunFacts(
        str(method.get("name", "")) if isinstance(method, dict) else str(method).partition("(")[0],
        True if several else None,
        tuple(sorted(clients, key=_by_id)),
        centers,
        "sketches",
        0,
        f"Read from files alone; distances are of sketches of the models ({why}).",
        told(path, config),
    )


def _rows(file: Path) -> list[Mapping[str, Any]]:
    try:
        found = parse_json(file.read_bytes())
    except (OSError, DecodeError):
        return []
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _of_rows(
    rows: Sequence[Mapping[str, Any]], sketches: Mapping[int, tuple[float, ...]], newcomer: bool
) -> list[ClientRecord]:
    return [
        ClientRecord(
            *(int(row["client"]), row.get("name"), int(row["cluster"]), int(row["samples"])),
            *(row.get("accuracy"), row.get("loss")),
            tuple(row["shares"]) if "shares" in row else None,
            sketches.get(int(row["client"])),
            newcomer,
        )
        for row in rows
        if {"client", "cluster", "samples"} <= set(row)
    ]


def _sketched_distances(path: Path | None) -> dict[int, tuple[float, ...]]:
    """Of each watched client that has trained: the distances of its model from each cluster's, by sketches."""
    found = None if path is None else read_sketch(path)
    if found is None or len(found["centers"]) < 2:
        return {}
    out = {}
    for client, sketch, trained in zip(found["ids"], found["sketch"], found["round"], strict=True):
        if trained:
            out[int(client)] = tuple(np.linalg.norm(found["centers"] - sketch, axis=1).astype(float).tolist())
    return out


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
