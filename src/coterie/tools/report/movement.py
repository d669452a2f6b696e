"""What happened to the clusters of a run, and when: counted by a rule, split, merged; and how many clients moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.tools.report.reading import Ints
from coterie.tools.report.record import RunRecord

Change = Literal["split", "merged", "counted", "drift"]
KINDS: tuple[Change, ...] = ("split", "merged", "counted", "drift")
NAMED = 6  # clusters in one sentence
COLUMNS = 5  # rounds in the figure of moves


@dataclass(frozen=True)
class Happening:
    """Something that happened to clusters in a round, and why or how, in words."""

    round: int
    kind: Change
    reason: str


def happenings(record: RunRecord) -> list[Happening]:
    """What rules wrote down, with their reasons; splits and merges are seen from who was where, of every method."""
    found = [Happening(one.round, "drift" if one.rule == "drift" else "counted", str(one)) for one in record.recounts]
    trail = record.trail
    if trail is not None:
        known = carried(trail.cluster)
        for step in np.flatnonzero(moves_by_round(trail.cluster)).tolist():
            found += _steps(int(trail.round[step + 1]), known[step], known[step + 1])
    return sorted(found, key=lambda one: (one.round, KINDS.index(one.kind)))


def _steps(round_: int, before: Ints, after: Ints) -> list[Happening]:
    """Splits and merges from one evaluated round to the next. A cluster whose clients mostly go on together under a
    new number has been renamed, which is neither."""
    both = (before >= 0) & (after >= 0)
    pairs, count = np.unique(np.stack([before[both], after[both]]), axis=1, return_counts=True)
    flows = sorted(zip(count.tolist(), *pairs.tolist(), strict=True), reverse=True)
    old, new = set(before[both].tolist()), set(after[both].tolist())
    heir, origin = dict[int, int](), dict[int, int]()  # where most of a cluster's clients went, and came from
    for _, i, j in flows:
        heir.setdefault(i, j)
        origin.setdefault(j, i)
    parts = dict[int, list[int]]()
    for j in sorted(new - old):
        if origin[j] in new or heir[origin[j]] != j:
            parts.setdefault(origin[j], []).append(j)
    size = dict(zip(*(v.tolist() for v in np.unique(after[both], return_counts=True)), strict=True))
    found = [
        Happening(round_, "split", f"cluster {i} split: new {_named([f'{j} ({size[j]} clients)' for j in found])}")
        for i, found in sorted(parts.items())
    ]
    for i in sorted(old - new):
        if heir[i] in old or origin[heir[i]] != i:
            found.append(Happening(round_, "merged", f"cluster {i} is no more: most of its clients are in {heir[i]}"))
    return found


def _named(clusters: list[str]) -> str:
    more = f" and {len(clusters) - NAMED} more" if len(clusters) > NAMED else ""
    return ", ".join(clusters[:NAMED]) + more


def carried(cluster: Ints) -> Ints:
    """(rounds, clients) the last cluster that is known of each client in each round; -1 before there is one."""
    rows = np.where(cluster >= 0, np.arange(len(cluster))[:, None], 0)
    return np.take_along_axis(cluster, np.maximum.accumulate(rows), 0)


def moves_by_round(cluster: Ints) -> Ints:
    """How many clients are in another cluster than when they were last seen: in each round but the first."""
    known = carried(cluster)
    moved: Ints = ((known[1:] != known[:-1]) & (known[:-1] >= 0)).sum(1)
    return moved


def clustered(cluster: Ints) -> Ints:
    """The rounds (positions) in which clients are in more than one cluster."""
    most = cluster.max(1, initial=-1)
    least = np.where(cluster >= 0, cluster, most[:, None]).min(1, initial=np.iinfo(np.int64).max)
    return np.flatnonzero(most > least)


def busiest(moved: Ints, most: int = COLUMNS) -> Ints:
    """At most so many rounds (positions): the first, the last, and those after and before the largest moves."""
    chosen = {0, len(moved)}
    for step in np.argsort(-moved, kind="stable")[: np.count_nonzero(moved)].tolist():
        for one in (step + 1, step):  # the round after it first: without it the move would not be seen
            if len(chosen) < most:
                chosen.add(one)
    return np.array(sorted(chosen))
