"""The bodies of answers, as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import torch

from coterie.serving.api.served_run import Assignment, Prediction, ServedRun
from coterie.training.score_text import cluster_scores

Json = dict[str, Any]
_STRICT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encoded(value: Json) -> bytes:
    """Compact and strict: no NaN gets out."""
    return _STRICT.encode(value).encode()


def prediction(run: str, found: Prediction, proba: bool) -> Json:
    """Labels by their names, where they have names; probabilities with the names of their columns."""
    values = found.values.tolist()
    out: Json = {"run": run, "cluster": found.cluster}
    if proba:
        out["probabilities"] = values
        out["classes"] = list(range(found.values.shape[1])) if found.classes is None else list(found.classes)
    elif found.classes is not None and found.values.dtype.kind != "f":
        out["predictions"] = [found.classes[value] for value in values]
    else:
        out["predictions"] = values
    return out | ({"warnings": list(found.warnings)} if found.warnings else {})


def assignment(run: str, found: Assignment, kept: str | None) -> Json:
    """Cluster, how sure that is, and how the cluster's model does on the client's own test samples."""
    reply = found.served.clients
    out: Json = {
        "run": run,
        "cluster": found.cluster,
        "nearest": found.nearest,
        "fits": found.fits,
        "p_value": found.p_value,
        "confidence": found.confidence,
        "shares": None if found.shares is None else list(found.shares),
        "tested": int(reply.n[0]),
        "accuracy": _finite(reply.accuracy[0]) if int(reply.n[0]) else None,
        "loss": _finite(reply.loss[0]) if int(reply.n[0]) else None,
        "kept": kept,
    }
    return out | ({"warnings": list(found.warnings)} if found.warnings else {})


def clusters(run: str, served: ServedRun, members: bool) -> Json:
    """Sizes and scores of the clusters; with the clients of each, where they were asked for."""
    result = served.result
    reply, names = result.clients, result.known.names
    rows: list[Json] = []
    if reply.choice is None:
        together = dataclasses.replace(reply, choice=torch.zeros_like(reply.ids))
        rows += [dataclasses.asdict(score) | _overall(served) for score in cluster_scores(together)]
    rows += map(dataclasses.asdict, cluster_scores(reply))
    if members:
        for row in rows:
            here = reply.ids if reply.choice is None else reply.ids[reply.choice == row["cluster"]]
            row["members"] = [client if names is None else names[client] for client in here.tolist()]
    return {"run": run, "method": _method(served), "round": served.round, "clusters": rows}


def runs(all_runs: dict[str, ServedRun]) -> Json:
    """What is served."""
    return {
        "runs": [
            {
                "name": name,
                "method": _method(run),
                "round": run.round,
                "clients": int((run.result.assignments >= 0).sum()),
                "clusters": run.result.summary.clusters,
                "accuracy": _number(run.result.summary.accuracy),
                "loss": _number(run.result.summary.loss),
                "kept": len(run.kept),
            }
            for name, run in all_runs.items()
        ]
    }


def _overall(served: ServedRun) -> Json:
    summary = served.result.summary
    return {"accuracy": _number(summary.accuracy), "loss": _number(summary.loss)}


def _method(served: ServedRun) -> str:
    return type(served.result.method).__name__


def _finite(value: torch.Tensor) -> float | None:
    return _number(float(value))


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
