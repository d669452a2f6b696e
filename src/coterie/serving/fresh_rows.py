"""Which rows of new data are new: a file that grows has the rows that a run was trained on among them.

On rows that it was trained on a model looks better than it is, and old rows hide what the new ones show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.federation import Federation

REPEATS = 0.05  # of a client's rows may be equal to another of its own: then an equal row is taken for the same one
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Fresh:
    """The new rows of each client, and what was said of the others."""

    rows: tuple[Rows, ...]
    old: int = 0  # left out: rows of the run's own, or not later than these
    unclear: int = 0  # equal to a row of the run's, in data that repeats itself: kept


def all_rows(given: Federation, client: int) -> Rows:
    """The numbers of all samples of a client, of whatever split."""
    return np.concatenate([given.rows(split).row(client).numpy() for split in ("train", "val", "test")])


def fresh_rows(given: Federation, ids: Sequence[int | None], reference: Federation | None) -> Fresh:
    """Without the rows that the run had already. ids: of the clients in the run; reference: its data, if here.

    Where both say when their rows are of, a client's new rows are those after its last in the run. Otherwise those
    that no row of the client in the run is equal to, unless its rows repeat themselves.
    """
    kept, old, unclear = [], 0, 0
    for client, number in enumerate(ids):
        rows = all_rows(given, client)
        if number is not None and reference is not None:
            had = _had(reference, number)
            again, sure = _again(given, rows, had)
            old, unclear = old + int(again.sum()) * sure, unclear + int(again.sum()) * (not sure)
            rows = rows[~again] if sure else rows
        kept.append(rows)
    return Fresh(tuple(kept), old, unclear)


def _had(reference: Federation, client: int) -> list[tuple[Federation, Rows]]:
    """The rows that a client has had in the run, also where its data changed."""
    phases = reference.course.phases if reference.course is not None else (reference,)
    return [(phase, np.unique(all_rows(phase, client))) for phase in phases]


def _again(given: Federation, rows: Rows, had: Sequence[tuple[Federation, Rows]]) -> tuple[NDArray[np.bool_], bool]:
    """Which of these rows the client has had already, and whether that is sure."""
    past = [phase.time[mine] for phase, mine in had if phase.time is not None and len(mine)]
    if given.time is not None and len(past):
        return given.time[rows] <= max(float(when.max()) for when in past), True
    known = {key for phase, mine in had for key in _keys(phase, mine)}
    again = np.array([key in known for key in _keys(given, rows)], dtype=bool)
    counts = Counter(_keys(*had[0]))
    repeated = sum(many for many in counts.values() if many > 1)
    return again, repeated <= REPEATS * max(sum(counts.values()), 1)


def _keys(source: Federation, rows: Rows) -> list[bytes]:
    """Each row as bytes: its inputs and its label, as a network sees them."""
    if not len(rows):
        return []
    samples = source.taken(torch.from_numpy(rows))
    parts = [part.reshape(len(rows), -1).float().numpy() + np.float32(0) for part in samples]  # + 0: no -0.0
    return [row.tobytes() for row in np.concatenate(parts, 1)]
