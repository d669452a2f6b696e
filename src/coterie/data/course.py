"""How the data of clients changes in the course of a run: by round, from one phase to the next.

A course is a matrix (phases x clients) of rows of a pool. The pool is a federation whose rows are lists of sample
numbers like any client's, one for everything that some client may have at some time. Which phase a round belongs to is
a function of the round alone, so a resumed run, and every engine, sees the same data.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.core.errors import CoterieError

if TYPE_CHECKING:
    from coterie.data.federation import Federation


@dataclass(frozen=True, eq=False)
class Course:
    """When the clients' data changes, and which rows of the pool are theirs from then on."""

    pool: Federation  # its hidden clusters are those of its rows
    starts: tuple[int, ...]  # the first round of each phase, from 0; the first is 0
    rows: NDArray[np.int64]  # (phases, N)
    names: tuple[str, ...] | None = None  # of the clients
    groups: tuple[str | None, ...] | None = None  # of the clients, as the user names them

    def phase(self, round: int) -> int:
        """The number of the phase that a round belongs to."""
        return max(bisect_right(self.starts, round) - 1, 0)

    @cached_property
    def phases(self) -> tuple[Federation, ...]:
        """The clients as they are in each phase. Their hidden clusters have the same numbers in all of them."""
        pool = replace(self.pool, names=None, groups=None)
        if pool.truth is not None:
            pool = replace(pool, truth=np.unique(pool.truth, return_inverse=True)[1].astype(np.int64))
        return tuple(replace(pool.take(rows), names=self.names, groups=self.groups) for rows in self.rows)

    def drifted(self, phase: int) -> NDArray[np.bool_]:
        """(N,) whose data is not what it was in the phase before."""
        return np.asarray(self.rows[phase] != self.rows[max(phase - 1, 0)])

    def of(self, clients: NDArray[np.int64]) -> Course:
        """The course of these clients."""
        names = None if self.names is None else tuple(self.names[c] for c in clients)
        groups = None if self.groups is None else tuple(self.groups[c] for c in clients)
        return replace(self, rows=self.rows[:, clients], names=names, groups=groups)

    def with_pool(self, change: Callable[[Federation], Federation]) -> Course:
        """The same course over a pool that has been changed without changing its rows' places."""
        return replace(self, pool=change(self.pool))

    def federation(self, note: str = "") -> Federation:
        """The clients as they are in the first phase, with the others behind it."""
        first = self.phases[0]
        return replace(first, course=self, note=", ".join(part for part in (first.note, note) if part))

    def checksum(self, crc: int) -> int:
        """Of who has what, and when."""
        for part in (np.asarray(self.starts, dtype=np.int64), self.rows):
            crc = zlib.crc32(np.ascontiguousarray(part).data, crc)
        for rows in (self.pool.train, self.pool.test):
            crc = rows.checksum(crc)
        return crc

    def describe(self) -> str:
        """In a few words: when it changes, and for how many clients."""
        moved = [int(self.drifted(p).sum()) for p in range(1, len(self.starts))]
        when = ", ".join(
            f"round {start + 1} ({many} clients)" for start, many in zip(self.starts[1:], moved, strict=True)
        )
        return f"data changes in {when}" if moved else "data never changes"


def unchanging(data: Federation, what: str) -> None:
    """Refuse what is not possible with data that changes by round."""
    if data.course is not None:
        raise CoterieError(
            f"{what}: not possible with data that changes by round (data.drift); leave one of the two out",
            code="config-conflict",
        )


def changing(
    pool: Federation, schedule: Mapping[int, ArrayLike], *, names: Sequence[str] | None = None, note: str = ""
) -> Federation:
    """Clients whose data changes by round: schedule[r] says, from round r on, which row of the pool each client has.

    Rounds count from 1, and round 1 must be there. The pool is a federation, one row for everything that some client
    may have; its `truth` is the hidden cluster of each row.
    """
    starts = sorted(schedule)
    if not starts or starts[0] != 1:
        raise CoterieError(
            f"drift: the schedule begins with round {starts[0] if starts else '(none)'}; say what clients have from "
            "round 1 on",
            code="drift-invalid",
        )
    rows = [np.asarray(schedule[start], dtype=np.int64) for start in starts]
    if len({row.shape for row in rows}) > 1 or rows[0].ndim != 1 or not len(rows[0]):
        raise CoterieError(
            "drift: every round of the schedule needs one row of the pool for each client", code="drift-invalid"
        )
    matrix = np.stack(rows)
    if matrix.min() < 0 or matrix.max() >= len(pool):
        raise CoterieError(
            f"drift: the pool has the rows 0..{len(pool) - 1}; the schedule names {matrix.min()}..{matrix.max()}",
            code="drift-invalid",
        )
    course = Course(pool, tuple(start - 1 for start in starts), matrix, None if names is None else tuple(names))
    return course.federation(note)
