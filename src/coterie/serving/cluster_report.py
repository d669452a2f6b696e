"""Who is where: the clusters of a finished run, without its training data.

Scores are those of the run's last evaluation. Distances between clusters are those of their models. How well a client
belongs is measured by its shares where the method mixes clusters, else by its model as it was last trained, as the run
directory has it (sketch.safetensors): how much farther the nearest other cluster's model is than its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieError
from coterie.core.settings import explained
from coterie.serving.assign import Run
from coterie.serving.cluster_record import ClientRecord, RunFacts, facts_of_files, facts_of_result
from coterie.serving.fit_of_newcomers import LEVEL, usual
from coterie.training.result import Result

TYPICAL = 3  # clients that are named for each cluster
Metric: TypeAlias = Literal["accuracy", "loss"]


@dataclass(frozen=True)
class Neighbour:
    """Another cluster, and how far its model is."""

    cluster: int
    distance: float
    cosine: float


@dataclass(frozen=True)
class ClientPlace:
    """A client and its place.

    margin: from -1 to 1; below 0, another cluster is nearer. None where it is not measured. doubts: what speaks
    against the place.
    """

    client: int
    name: str | None
    cluster: int | None
    samples: int  # that it was scored on
    score: float | None
    margin: float | None
    doubts: tuple[str, ...] = ()
    newcomer: bool = False  # held out of training, and admitted after it
    loss: float | None = None

    @property
    def called(self) -> str:
        """Its name, or its number."""
        return str(self.client) if self.name is None else self.name


@dataclass(frozen=True)
class ClusterRow:
    """A cluster; mean, spread (standard deviation), worst and best of the scores of its clients, each counted once."""

    cluster: int
    size: int
    mean: float | None
    spread: float | None
    worst: float | None
    best: float | None
    nearest: Neighbour | None
    typical: tuple[str, ...]
    doubtful: tuple[str, ...]


@explained
@dataclass(frozen=True)
class ClusterReport:
    """The clusters of a run; `print` shows them."""

    method: str
    metric: Metric
    clustered: bool | None  # whether the method has clusters; None: the run directory does not say
    clusters: tuple[ClusterRow, ...]
    clients: tuple[ClientPlace, ...]
    unplaced: int  # clients that were not evaluated
    measured_by: Literal["models", "sketches"] | None  # distances between clusters
    note: str = ""
    attack: str | None = None  # in words, where some of its clients were hostile

    def __str__(self) -> str:
        from coterie.serving.cluster_words import words

        return "\n".join(words(self))


def clusters(run: Run, trust: Sequence[str] = ()) -> ClusterReport:
    """Who is where in a run: sizes, scores, nearest clusters, typical and doubtful clients.

    run: a result, or a run's directory; also one of version 0.1, or of a run over a network. It needs no training data.
    trust: code beyond this library that the directory may name, as for `coterie.load`.
    """
    if isinstance(run, Result):
        return report(facts_of_result(run))
    from coterie.network.server import load

    try:
        return report(facts_of_result(load(run, trust=trust)))
    except CoterieError as error:
        found = facts_of_files(Path(run), str(error))
        if found is None:
            raise
        return report(found)


def report(facts: RunFacts) -> ClusterReport:
    """The report of what is known of a run."""
    alone = facts.clustered is False
    metric: Metric = "loss" if all(one.accuracy is None for one in facts.clients) else "accuracy"
    places = [
        ClientPlace(
            *(one.client, one.name, None if alone else one.cluster, one.samples, one.score(metric)),
            None if alone else _margin(one),
            () if alone else _doubts(one, facts, metric),
            one.newcomer,
            one.score("loss"),
        )
        for one in facts.clients
    ]
    numbers = sorted({place.cluster for place in places if place.cluster is not None})
    if facts.models is not None and not alone:
        numbers = sorted({*numbers, *range(len(facts.models))})
    distances = None if facts.models is None or alone else _distances(facts.models)
    return ClusterReport(
        facts.method,
        metric,
        facts.clustered,
        tuple(_row(number, places, metric, distances) for number in numbers),
        tuple(places),
        facts.unplaced,
        facts.measured_by if distances is not None and len(distances[0]) > 1 else None,
        facts.note,
        facts.attack,
    )


def _row(number: int, places: list[ClientPlace], metric: Metric, distances: Any) -> ClusterRow:
    mine = [place for place in places if place.cluster == number]
    scores = np.array([place.score for place in mine if place.score is not None])
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (None, None)
    return ClusterRow(
        number,
        len(mine),
        float(scores.mean()) if len(scores) else None,
        float(scores.std(ddof=1)) if len(scores) > 1 else None,
        *((low, high) if metric == "accuracy" else (high, low)),
        _nearest(number, distances),
        tuple(place.called for place in _typical(mine)),
        tuple(place.called for place in mine if place.doubts),
    )


def _typical(mine: list[ClientPlace]) -> list[ClientPlace]:
    """Those that belong most clearly or, where that is not measured, whose score is nearest to the median."""
    sure = [place for place in mine if not place.doubts]
    measured = [place for place in sure if place.margin is not None]
    if measured:
        return sorted(measured, key=lambda place: (-(place.margin or 0.0), place.client))[:TYPICAL]
    scores = [place.score for place in mine if place.score is not None]
    middle = float(np.median(scores)) if scores else 0.0
    scored = [place for place in sure if place.score is not None]
    return sorted(scored, key=lambda place: (abs((place.score or 0.0) - middle), place.client))[:TYPICAL]


def _margin(one: ClientRecord) -> float | None:
    """(farther - nearer) / farther, of the distances to its own and the nearest other cluster; or of its shares."""
    if one.shares is not None:
        others = [share for cluster, share in enumerate(one.shares) if cluster != one.cluster]
        return one.shares[one.cluster] - max(others) if others and one.cluster < len(one.shares) else None
    if one.distances is None or len(one.distances) < 2 or one.cluster >= len(one.distances):
        return None
    own = one.distances[one.cluster]
    other = min(d for cluster, d in enumerate(one.distances) if cluster != one.cluster)
    return (other - own) / max(other, own) if max(other, own) > 0 else 0.0


def _doubts(one: ClientRecord, facts: RunFacts, metric: Metric) -> tuple[str, ...]:
    out = []
    margin = _margin(one)
    if one.shares is not None and one.cluster < len(one.shares) and one.shares[one.cluster] <= 0.5:
        out.append(f"only {one.shares[one.cluster]:.0%} of it is of this cluster")
    elif one.shares is None and margin is not None and margin < 0 and one.distances is not None:
        other = min((d, c) for c, d in enumerate(one.distances) if c != one.cluster)[1]
        out.append(f"its model is nearer to cluster {other}")
    if not one.newcomer and _unusual(one, facts, metric):
        out.append(f"its {metric} is unusual in its cluster")
    return tuple(out)


def _unusual(one: ClientRecord, facts: RunFacts, metric: Metric) -> bool:
    """Whether it scores worse than one more client of its cluster would, by the test that newcomers are put to."""
    mine = one.error(metric)
    if mine is None or one.samples < 2:
        return False
    others = [
        other.error(metric)
        for other in facts.clients
        if other.cluster == one.cluster and other is not one and not other.newcomer
    ]
    found = usual(mine, one.spread(metric), one.samples, np.array([e for e in others if e is not None]))
    return not math.isnan(found) and found < LEVEL


def _distances(models: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of models (K, P): the distance and the cosine of each two."""
    lengths = np.linalg.norm(models, axis=1)
    apart = np.stack([np.linalg.norm(models - model, axis=1) for model in models])
    with np.errstate(invalid="ignore", divide="ignore"):
        return apart, models @ models.T / np.outer(lengths, lengths)


def _nearest(number: int, distances: Any) -> Neighbour | None:
    if distances is None or len(distances[0]) < 2 or number >= len(distances[0]):
        return None
    apart, cosine = distances[0][number].copy(), distances[1][number]
    apart[number] = np.inf
    other = int(apart.argmin())
    return Neighbour(other, float(apart[other]), float(np.nan_to_num(cosine[other])))
