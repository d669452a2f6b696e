"""Drift: clients move between the hidden clusters of a partition while a run is going on.

The clusters are those that the partition makes: rotations, swapped or shifted labels, groups of classes, ... Clients
of all clusters move together, each to the next cluster, where it gets the data of the client that leaves: so nobody
shares samples with anybody, and clusters keep their sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.seeds import Purpose, generator
from coterie.core.settings import STRICT, ShareAboveZero, dataclass
from coterie.data.federation import Course, Federation, Ragged
from coterie.data.partitions.dealing import many_held

Ints = NDArray[np.int64]
HELD_OUT = 0.2  # of a client's samples of one period, the latest


@dataclass(frozen=True, config=STRICT)
class Drift:
    """How the clients' data changes in the course of a run."""

    # sudden: once. staggered: a part of the movers at a time. recurrent: there and back. incremental: a growing share
    # of a mover's samples is of the new cluster. time: nobody moves; the periods of a table's time column in turn
    kind: Literal["sudden", "staggered", "recurrent", "incremental", "time"] = "sudden"
    at: PositiveInt = 10  # the first round on changed data; the first round is 1
    every: PositiveInt = 5  # rounds from one change to the next
    changes: PositiveInt = 3  # how many there are; a sudden drift is one
    share: ShareAboveZero = 0.5  # of the clients that move

    def __call__(self, federation: Federation, seed: int = 0) -> Federation:
        """The federation that changes like this."""
        if federation.course is not None:
            raise CoterieError("data.drift: this data changes already; leave it out", code="drift-invalid")
        if self.kind == "time":
            return self._by_time(federation)
        home, away = self._moves(federation, generator(seed, Purpose.DRIFT))
        if self.kind == "incremental":
            return self._by_share(federation, home, away, generator(seed, Purpose.DRIFT, 1))
        rows = [np.arange(len(federation))]
        match self.kind:
            case "sudden":
                waves = [np.arange(len(home))]
            case "recurrent":
                waves = [np.arange(len(home))] * self.changes
            case _:
                waves = [wave for wave in np.array_split(np.arange(len(home)), self.changes) if len(wave)]
        for wave in waves:
            row, movers, there = rows[-1].copy(), home[wave].ravel(), away[wave].ravel()
            row[movers] = np.where(row[movers] == movers, there, movers)
            rows.append(row)
        return self._of(federation, federation, np.stack(rows))

    def _starts(self, changes: int) -> tuple[int, ...]:
        return (0, *(self.at - 1 + self.every * change for change in range(changes)))

    def _of(self, federation: Federation, pool: Federation, rows: Ints) -> Federation:
        if self.at == 1:  # changed from the beginning
            rows, starts = rows[1:], (0, *self._starts(len(rows) - 1)[2:])
        else:
            starts = self._starts(len(rows) - 1)
        course = Course(pool, starts, rows, federation.names, federation.groups)
        return course.federation(f"{self.kind} drift: {course.describe()}")

    def _moves(self, federation: Federation, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """(cycles, clusters): who moves with whom, one client of each cluster; and whose data each of them gets."""
        if federation.truth is None or len(np.unique(federation.truth)) < 2 or federation.mixture is not None:
            raise CoterieError(
                "data.drift: clients move between the hidden clusters of a partition, and here none are known; take "
                "data.partition.name=rotated, shifted, swapped, cluster-classes, ..., or data.drift.kind=time for a "
                "table with a column of times",
                code="drift-invalid",
            )
        clusters = [rng.permutation(np.flatnonzero(federation.truth == k)) for k in np.unique(federation.truth)]
        many = int(self.share * min(map(len, clusters)) + 0.5)
        if not many:
            raise CoterieError(
                f"data.drift.share: {self.share:g} of a cluster of {min(map(len, clusters))} clients is nobody; "
                "take a larger share",
                code="drift-invalid",
            )
        home = np.stack([members[:many] for members in clusters], 1)
        return home, np.roll(home, -1, 1)

    def _by_share(self, federation: Federation, home: Ints, away: Ints, rng: np.random.Generator) -> Federation:
        """Rows of the pool in which a growing share of the samples is the new cluster's."""
        assert federation.truth is not None
        movers, there = home.ravel(), away.ravel()
        splits = {"train": federation.train, "test": federation.test}
        if federation.val is not None:
            splits["val"] = federation.val
        order = {
            name: [rng.permutation(rows.row(c).numpy()) for c in range(len(federation))]
            for name, rows in splits.items()
        }
        mixed: dict[str, list[Ints]] = {name: [] for name in splits}
        rows, truth = [np.arange(len(federation))], [federation.truth]
        for change in range(1, self.changes + 1):
            share, row = change / self.changes, np.arange(len(federation))
            row[movers] = there
            if change < self.changes:
                row[movers] = len(federation) + (change - 1) * len(movers) + np.arange(len(movers))
                truth.append(federation.truth[there if share >= 0.5 else movers])
                for name, own in order.items():
                    mixed[name] += [_mixed(own[a], own[b], share) for a, b in zip(movers, there, strict=True)]
            rows.append(row)
        added = {name: Ragged.join([splits[name], Ragged.of(more)], (0, 0)) for name, more in mixed.items() if more}
        pool = replace(federation, **added, truth=np.concatenate(truth), names=None, groups=None)  # type: ignore[arg-type]
        return self._of(federation, pool, np.stack(rows))

    def _by_time(self, federation: Federation) -> Federation:
        """Periods of equally many samples, one after another; of each period the latest samples are held out."""
        if federation.time is None:
            raise CoterieError(
                "data.drift.kind: time: the data does not say when its samples are of; name the column "
                "(data.time=COLUMN, csv and parquet)",
                code="drift-invalid",
            )
        if federation.val is not None:
            raise CoterieError(
                "data.drift.kind: time: samples of this federation are held out for validation already, by no period; "
                "leave them in, and give the run validation=0.2",
                code="drift-invalid",
            )
        train, test = federation.train, federation.test
        owner = np.concatenate([train.owners(), test.owners()])
        numbers = np.concatenate([train.numbers.numpy(), test.numbers.numpy()])
        when = federation.time[numbers]
        period = np.searchsorted(np.quantile(when, np.arange(1, self.changes + 1) / (self.changes + 1)), when, "right")
        clients = len(federation)
        kept: dict[str, list[Ints]] = {"train": [], "test": []}
        found: Ints = np.full((self.changes + 1, clients), -1)
        for p, c in np.ndindex(found.shape):
            mine = numbers[(period == p) & (owner == c)]
            mine = mine[np.argsort(federation.time[mine], kind="stable")]
            if len(mine) >= 2:
                held = max(int(many_held(np.array([len(mine)]), HELD_OUT)[0]), 1)
                found[p, c] = clients + len(kept["train"])
                kept["train"].append(mine[:-held])
                kept["test"].append(mine[-held:])
        for c in range(clients):  # without samples of a period, a client has those of the period before, or the next
            known = np.flatnonzero(found[:, c] >= 0)
            last = np.clip(np.searchsorted(known, np.arange(len(found)), "right") - 1, 0, None)
            found[:, c] = found[known[last], c] if len(known) else c
        owners = np.concatenate([np.arange(clients), [int(owner[numbers == row[0]][0]) for row in kept["train"]]])
        pool = replace(
            federation,
            train=Ragged.join([train, Ragged.of(kept["train"])], (0, 0)),
            test=Ragged.join([test, Ragged.of(kept["test"])], (0, 0)),
            truth=None if federation.truth is None else federation.truth[owners],
            mixture=None if federation.mixture is None else federation.mixture[owners],
            names=None,
            groups=None,
        )
        return self._of(federation, pool, found)


def _mixed(own: Ints, new: Ints, share: float) -> Ints:
    """A share of new samples and the rest of one's own; the owner of the new ones gives up the same."""
    return np.concatenate([own[round(share * len(own)) :], new[: round(share * len(new))]])
