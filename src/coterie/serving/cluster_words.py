"""A report on clusters in words and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from coterie.core.text import counted, short
from coterie.serving.cluster_report import ClientPlace, ClusterReport, ClusterRow

SHOWN = 6  # names in a line
MEMBERS = 40  # clients of a run, up to which all are named
KINDS: dict[str, type] = {
    "client": int,
    "name": str,
    "cluster": int,
    "test_samples": int,
    "accuracy": float,
    "loss": float,
    "margin": float,
    "doubts": str,
    "newcomer": bool,
}


def words(found: ClusterReport) -> Iterator[str]:
    """What `print` shows."""
    many = len(found.clients)
    if found.clustered is False:
        yield f"No clusters in this run: {found.method} gives all {many} clients the same model, or each its own."
        yield _scores(_everyone(found), found.metric, "All of them")
    elif found.clustered is None:
        yield f"All {many} clients are in one cluster, or {found.method} has none."
        yield from (_scores(row, found.metric, "All of them") for row in found.clusters if row.size)
    else:
        here = sum(row.size > 0 for row in found.clusters)
        clients, clusters = counted(many, "client"), counted(here, "cluster")
        yield f"{clients} in {clusters} ({found.method}). Scores count every client the same."
        for row in found.clusters:
            yield from _cluster(row, found.metric)
            members = [place.called for place in found.clients if place.cluster == row.cluster]
            if members and many <= MEMBERS:
                yield f"  members: {', '.join(members)}"
        if many > MEMBERS:
            yield "Who is in which cluster: --csv FILE."
    if found.attack:
        yield f"{found.attack[0].upper()}{found.attack[1:]}."
    if found.unplaced:
        yield f"Not evaluated, so their place is not known: {counted(found.unplaced, 'client')}."
    doubtful = [place for place in found.clients if place.doubts]
    for place in doubtful[:SHOWN]:
        yield f"Doubtful: {place.called} (cluster {place.cluster}): {'; '.join(place.doubts)}."
    if len(doubtful) > SHOWN:
        yield f"Doubtful: {len(doubtful) - SHOWN} more; --csv has all."
    if found.note:
        yield found.note


def _cluster(row: ClusterRow, metric: str) -> Iterator[str]:
    if not row.size:
        yield f"Cluster {row.cluster}: no clients."
        return
    yield _scores(row, metric, f"Cluster {row.cluster}: {row.size} client{'s' * (row.size != 1)}")
    if row.nearest is not None:
        near = row.nearest
        how = f"distance {short(near.distance, 3)}, cosine of whole models {short(near.cosine, 3)}"
        yield f"  nearest: cluster {near.cluster}, {how}"
    if row.typical:
        yield f"  typical: {_listed(row.typical)}"


def _scores(row: ClusterRow, metric: str, who: str) -> str:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}" if metric == "accuracy" else short(value, 3)

    if row.mean is None:
        return f"{who}, without a score"
    spread = "" if row.spread is None else f" +- {shown(row.spread)}"
    return f"{who}, {metric} {shown(row.mean)}{spread} (worst {shown(row.worst)}, best {shown(row.best)})"


def _everyone(found: ClusterReport) -> ClusterRow:
    import numpy as np

    scores = np.array([place.score for place in found.clients if place.score is not None])
    if not len(scores):
        return ClusterRow(0, len(found.clients), None, None, None, None, None, (), ())
    low, high = float(scores.min()), float(scores.max())
    ends = (low, high) if found.metric == "accuracy" else (high, low)
    spread = float(scores.std(ddof=1)) if len(scores) > 1 else None
    return ClusterRow(0, len(found.clients), float(scores.mean()), spread, *ends, None, (), ())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def table(found: ClusterReport) -> dict[str, list[Any]]:
    """A row per client, as columns."""
    rows = [_row(place, found.metric) for place in found.clients]
    return {name: [row[name] for row in rows] for name in KINDS}


def _rounded(value: float | None) -> float | None:
    """Six digits: a model's numbers have no more, and 0.6666666865348816 is no accuracy."""
    return None if value is None else float(f"{value:.6g}")


def _row(place: ClientPlace, metric: str) -> dict[str, Any]:
    return {
        "client": place.client,
        "name": place.name,
        "cluster": place.cluster,
        "test_samples": place.samples,
        "accuracy": _rounded(place.score if metric == "accuracy" else None),
        "loss": _rounded(place.loss),
        "margin": _rounded(place.margin),
        "doubts": "; ".join(place.doubts),
        "newcomer": place.newcomer,
    }
