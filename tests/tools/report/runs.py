"""Run directories written by hand, so that every number in them is known, and large ones cost no training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy as safetensors
import yaml

BELONGS = {"data": "toys, in two groups: 4 clients, 40 training samples, checksum 0badcafe", "model": "6 numbers"}
# Three rounds, the second not evaluated; client 2 moves to cluster 1 in the last; client 3 is missing in the first.
ROUNDS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (
        '{"format": 3, "round": 1, "asked": 4, "answered": 3, "missing": [{"client": 3, "reason": "asleep"}], '
        '"attempts": 1, "seconds": 2.0, "unscored": [], "discrepancy": 0.5, "clusterability": 2.0, '
        '"layers": {"traffic": {"down": 4000, "up": 3000}}, "client_seconds": 1.5, '
        '"loss": 1.0, "accuracy": 0.5, "macro_f1": 0.4, "clusters": 2, '
        '"sizes": [3, 1], "ari": 0.2, "nmi": 0.3, "mixture_error": null}',
        '{"format": 3, "round": 2, "asked": 4, "answered": 4, "missing": [], "attempts": 1, "seconds": 1.0, '
        '"unscored": [], '
        '"discrepancy": null, "clusterability": null, '
        '"layers": {"traffic": {"down": 4000, "up": 4000}}, "client_seconds": 0.75}',
        '{"format": 3, "round": 3, "asked": 4, "answered": 4, "missing": [], "attempts": 1, "seconds": 1.0, '
        '"unscored": [], '
        '"discrepancy": 0.25, "clusterability": 1.0, '
        '"layers": {"traffic": {"down": 4000, "up": 4000}}, "client_seconds": 0.75, '
        '"loss": 0.5, "accuracy": 0.75, "macro_f1": 0.7, "clusters": 2, "sizes": [2, 2], "ari": 1.0, "nmi": 1.0, '
        '"mixture_error": null}',
    )
]
TRACE: list[dict[str, Any]] = [
    {"ids": [0, 1, 2, 3]},
    {"round": 1, "cluster": [0, 0, 0, 1], "accuracy": [0.5, 0.25, 0.75, 0.5], "macro_f1": [0.4, 0.3, 0.5, 0.4]},
    {"round": 3, "cluster": [0, 0, 1, 1], "accuracy": [1.0, 0.5, 0.75, None], "macro_f1": [1.0, 0.4, 0.7, None]},
]
CLIENTS: list[dict[str, Any]] = [
    {"client": c, "cluster": c // 2, "hidden": c // 2, "samples": 10, "loss": 0.5, "accuracy": a, "macro_f1": a}
    for c, a in enumerate((1.0, 0.5, 0.75, 0.6))
]


def config(seed: int = 0, rounds: int = 3, **method: Any) -> dict[str, Any]:
    """A configuration like the library's own."""
    named = {"name": "wecfl", "k": 2} | method
    return {"rounds": rounds, "seed": seed, "data": {"name": "toys"}, "method": named}


def write(
    path: Path,
    settings: Mapping[str, Any] | None = None,
    rounds: list[dict[str, Any]] | None = None,
    trace: list[dict[str, Any]] | None = None,
    clients: list[dict[str, Any]] | None = None,
) -> Path:
    """A small run of four clients in two clusters; every part can be another."""
    path.mkdir(parents=True, exist_ok=True)
    settings = config() if settings is None else settings
    about = {"started": "2026-01-02T03:04:05Z", "seed": settings.get("seed", 0), "belongs": BELONGS}
    (path / "config.yaml").write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    (path / "run.json").write_text(json.dumps(about | {"versions": {"coterie": "0.1.0"}}))
    for name, lines in (("rounds", ROUNDS if rounds is None else rounds), ("trace", TRACE if trace is None else trace)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "clients.json").write_text(json.dumps(CLIENTS if clients is None else clients))
    sketch(path, np.array([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0], [-2.0, 0.0]]), np.array([[1.5, 0.0], [-1.5, 0.0]]))
    return path


def sketch(path: Path, vectors: Any, centers: Any) -> None:
    """Everyone trained in the last round."""
    count = len(vectors)
    arrays = {"ids": np.arange(count), "round": np.full(count, 3)}
    arrays |= {"sketch": vectors.astype(np.float32), "centers": centers.astype(np.float32)}
    safetensors.save_file(arrays, path / "sketch.safetensors")


def score_only(path: Path, accuracy: float, seed: int, **method: Any) -> Path:
    """The small run with another last accuracy."""
    rounds = [*ROUNDS[:2], ROUNDS[2] | {"accuracy": accuracy}]
    return write(path, config(seed, **method), rounds=rounds)


def write_large(path: Path, clients: int = 1000, rounds: int = 300, clusters: int = 8) -> Path:
    """As many clients and rounds as the page must bear: clients wander between clusters, and some are missing."""
    rng = np.random.default_rng(0)
    truth = np.arange(clients) % clusters
    lines, trace = list[dict[str, Any]](), list[dict[str, Any]]([{"ids": list(range(clients))}])
    for r in range(1, rounds + 1):
        lost = rng.random(clients) < 0.5 * np.exp(-r / 40)
        found = np.where(lost, rng.integers(clusters, size=clients), truth)
        accuracy = np.clip(0.9 - 0.6 * np.exp(-r / 50) + rng.normal(0, 0.08, clients), 0, 1)
        away = rng.choice(clients, 20, replace=False)
        lines.append(
            ROUNDS[2]
            | {
                "round": r,
                "asked": clients,
                "answered": clients - 20,
                "seconds": 3 + rng.random(),
                "client_seconds": 2.5,
            }
            | {"missing": [{"client": int(c), "reason": "dropped out (simulated)"} for c in away]}
            | {"accuracy": float(accuracy.mean()), "macro_f1": float(accuracy.mean()) - 0.05, "clusters": clusters}
            | {"sizes": np.bincount(found, minlength=clusters).tolist(), "ari": 1 - float(lost.mean())}
        )
        scores = [float(f"{a:.4g}") for a in accuracy]
        trace.append({"round": r, "cluster": found.tolist(), "accuracy": scores, "macro_f1": scores})
    table = [
        CLIENTS[0] | {"client": c, "name": f"clinic {c}", "cluster": int(truth[c]), "hidden": int(truth[c])}
        for c in range(clients)
    ]
    write(path, config(rounds=rounds, k=clusters), lines, trace, table)
    centers = rng.normal(size=(clusters, 256))
    sketch(path, centers[truth] + rng.normal(0, 0.6, (clients, 256)), centers)
    return path


def validated(path: Path, last: float | None = 0.7, seed: int = 0, scores: tuple[float, ...] = (0.5, 0.6, 0.8)) -> Path:
    """The small run, each round scored on validation samples, and tested (`last`) after the third alone."""
    shared = {"macro_f1": 0.4, "clusters": 2, "sizes": [2, 2], "ari": 0.5, "nmi": 0.5, "mixture_error": None}
    rounds = [
        ROUNDS[1] | {"round": r, "validation": shared | {"loss": 1 - a, "accuracy": a}} for r, a in enumerate(scores, 1)
    ]
    if last is not None:
        rounds[-1] |= {key: ROUNDS[2][key] for key in (*shared, "loss")} | {"accuracy": last}
    return write(path, config(seed) | {"validation": 0.2}, rounds)
