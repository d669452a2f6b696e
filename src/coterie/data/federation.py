"""The clients' data: samples held once, clients as index arrays into them.

A `Domain` is one way to look at a table of samples (turned, relabelled); its samples are numbered
after those of the domain before it, and a client is a list of such numbers. A million clients cost
a million short index rows, not copies. What is hidden from methods (`truth`) is kept for metrics.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.model import channels_last
from coterie.core.settings import Kind, explained, explained_call
from coterie.core.tables import Roster, crisp, grouped
from coterie.core.text import client_name, counted, end_to_end
from coterie.data.columns import (
    Categories,
    ColumnRules,
    Missing,
    Preparation,
    Standardise,
    TablePlan,
    TableScale,
    listed,
    standard_scale,
)
from coterie.data.scale import Scale, TargetScale


@explained
@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of sample numbers, one per client, end to end."""

    numbers: Tensor  # (total,)
    ends: Tensor  # (clients + 1,), first 0

    @staticmethod
    def of(rows: Sequence[ArrayLike]) -> Ragged:
        """From one list of numbers per client."""
        arrays = [np.asarray(row, dtype=np.int64) for row in rows]
        ends = np.concatenate([[0], np.cumsum([len(a) for a in arrays])])
        numbers = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
        return Ragged(torch.from_numpy(numbers), torch.from_numpy(ends.astype(np.int64)))

    @staticmethod
    def by(owner: NDArray[np.int64], numbers: NDArray[np.int64], clients: int) -> Ragged:
        """From the owner of each number; in a client's row the numbers keep their order."""
        order = np.argsort(owner, kind="stable")
        ends = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=clients))])
        return Ragged(torch.from_numpy(numbers[order]), torch.from_numpy(ends.astype(np.int64)))

    def owners(self) -> NDArray[np.int64]:
        """The client of each number."""
        return np.repeat(np.arange(len(self)), self.lengths.numpy())

    def take(self, clients: ArrayLike) -> Ragged:
        """The rows of these clients, in this order; a client may come twice."""
        return Ragged.of([self.row(int(c)).numpy() for c in np.asarray(clients)])

    @staticmethod
    def join(parts: Sequence[Ragged], starts: Sequence[int] | NDArray[np.int64]) -> Ragged:
        """The rows of all parts; the numbers of a part begin at its start."""
        numbers = torch.cat([rows.numbers + int(start) for rows, start in zip(parts, starts, strict=False)])
        lengths = torch.cat([rows.lengths for rows in parts])
        return Ragged(numbers, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))

    def checksum(self, crc: int) -> int:
        """Of all numbers, and of the row each belongs to."""
        for numbers in (self.numbers, self.ends):
            crc = zlib.crc32(numbers.contiguous().numpy().data, crc)
        return crc

    def __len__(self) -> int:
        return len(self.ends) - 1

    def row(self, client: int) -> Tensor:
        """The sample numbers of a client."""
        return self.numbers[self.ends[client] : self.ends[client + 1]]

    @property
    def lengths(self) -> Tensor:
        """How many samples each client has."""
        return self.ends.diff()


def spread(counts: NDArray[np.int64]) -> str:
    """The range of counts in words: "5 each", or "min/median/max 5/6/8"."""
    low, middle, high = int(counts.min()), int(np.median(counts)), int(counts.max())
    return f"{low:,} each" if low == high else f"min/median/max {low:,}/{middle:,}/{high:,}"


def joined_marks(
    parts: Sequence[NDArray[np.bool_] | None], starts: Sequence[int] | NDArray[np.int64]
) -> NDArray[np.bool_] | None:
    """The marks of samples end to end, part by part; None where no part has any. Part i begins at starts[i]."""
    if all(part is None for part in parts):
        return None
    lengths = np.diff(np.asarray(starts))
    return np.concatenate(
        [np.zeros(n, dtype=bool) if part is None else part for part, n in zip(parts, lengths, strict=True)]
    )


Samples: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Fault:
    """What is wrong with some samples: NaN or Inf in x or y, or a label outside 0..outputs-1."""

    what: Literal["x", "y", "label"]
    outputs: int
    text: str

    def is_in(self, x: Tensor, y: Tensor) -> bool:
        """Whether these samples, as a client sees them, have it."""
        if self.what == "label":
            return bool(((y < 0) | (y >= self.outputs)).any())
        return not bool((x if self.what == "x" else y).isfinite().all())


@explained
@dataclass(frozen=True, eq=False)
class Domain:
    """A table of samples, seen through a scale, a quarter turn or a change of labels."""

    x: Tensor  # (n, ...) as stored: bytes, half precision, ...
    y: Tensor  # (n,) int64 labels, or (n, outputs) targets
    scale: Scale | None = Scale()  # None: as they are (the numbers of words)
    turns: int = 0  # quarter turns counter-clockwise over the last two axes
    relabel: Tensor | None = None  # new label of each old one
    target: TargetScale | None = None  # how targets of a regression are standardised; None: they are learnt as stored

    def take(self, rows: Tensor) -> Samples:
        """These samples, as the clients of this domain see them."""
        x, y = self.x[rows], self.y[rows]
        early = self.scale is None or self.scale.uniform  # then it may be turned first, while it is small
        x = self._turned(x) if early else x
        x = self.inputs(channels_last(x))
        x = x if early else self._turned(x)
        if self.target is not None:
            return x, self.target(y)
        return x, y if self.relabel is None else self.relabel[y]

    def _turned(self, x: Tensor) -> Tensor:
        return torch.rot90(x, self.turns, (-2, -1)) if self.turns % 4 else x

    def inputs(self, x: Tensor) -> Tensor:
        """What a network is given for samples as stored (not turned)."""
        return x if self.scale is None else self.scale(x)

    def labels(self, rows: Tensor) -> Tensor:
        """The labels of these samples, as the clients of this domain see them."""
        return self.y[rows] if self.relabel is None else self.relabel[self.y[rows]]

    def faults(self, kind: Kind, outputs: int) -> Iterator[Fault]:
        """What is wrong with the stored samples."""
        if self.x.is_floating_point() and not bool(self._finite().all()):
            yield Fault("x", outputs, "has NaN or Inf in its inputs; clean or drop those samples")
        if self.y.is_floating_point() and not bool(self.y.isfinite().all()):
            yield Fault("y", outputs, "has NaN or Inf in its targets; clean or drop those samples")
        if kind == "classification" and len(self.y):
            labels = self.y if self.relabel is None else self.relabel[self.y]
            low, high = int(labels.min()), int(labels.max())
            if low < 0 or high >= outputs:
                from_one = ". Do yours start at 1? Subtract 1." if low == 1 and high == outputs else ""
                text = f"has a label outside 0..{outputs - 1}; raise `outputs` or map the labels{from_one}"
                yield Fault("label", outputs, text)

    def _finite(self) -> Tensor:
        """Of each stored number whether it is one; holes in a table are no fault where they are filled in."""
        filled = self.scale.filled if isinstance(self.scale, TableScale) else False
        return self.x.isfinite() | (self.x.isnan() & filled)

    def checksum(self, crc: int) -> int:
        """Of all samples and how they are seen."""
        crc = zlib.crc32(f"{self.turns} {self.relabel}".encode(), crc)
        crc = zlib.crc32(b"" if self.scale is None else self.scale.bytes(), crc)
        crc = zlib.crc32(b"" if self.target is None else self.target.bytes(), crc)
        for table in (self.x, self.y):
            crc = zlib.crc32(table.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
        return crc


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


UNSEEN = "values without an input, so that all are 0"  # begins a remark

Split: TypeAlias = Literal["train", "val", "test"]


@dataclass(frozen=True, eq=False)
class ClientData:
    """What lies at one client; a split is fetched when first asked for."""

    federation: Federation
    client: int

    @cached_property
    def train(self) -> Samples:
        """Training inputs and labels."""
        return self.federation.samples(self.client, "train")

    @cached_property
    def val(self) -> Samples:
        """Validation inputs and labels; none where none were held out."""
        return self.federation.samples(self.client, "val")

    @cached_property
    def test(self) -> Samples:
        """Test inputs and labels."""
        return self.federation.samples(self.client, "test")

    @property
    def target(self) -> TargetScale | None:
        """How its targets are standardised, if they are."""
        return self.federation.domain_of(self.client).target

    @property
    def target_mean(self) -> Tensor:
        """(targets,) the mean of its training targets, in original units: what a constant predictor says."""
        return self.federation.target_means[self.client]


@explained
@dataclass(frozen=True, eq=False)
class Federation:
    """Clients 0..N-1, their training and test samples and, if known, the cluster each one truly belongs to."""

    domains: tuple[Domain, ...]
    train: Ragged
    test: Ragged
    kind: Kind = "classification"
    outputs: int = 0  # classes, or targets of a regression
    truth: NDArray[np.int64] | None = None  # (N,) true cluster
    mixture: NDArray[np.float64] | None = None  # (N, S) where clients are mixtures: how much of each distribution
    name: str = "own data"
    note: str = ""  # what its maker has to say: samples left over, clients that are copies
    names: tuple[str, ...] | None = None  # of the clients, where they have names
    features: tuple[str, ...] | None = None  # what the inputs are, where they have names
    left_out: tuple[str, ...] = ()  # columns of a table that are no inputs (`remarks` says why)
    class_names: tuple[str, ...] | None = None  # where labels are numbered names
    val: Ragged | None = None  # validation samples, where they were held out: see `with_validation`
    groups: tuple[str | None, ...] | None = None  # (N,) the group of each client, as the user names them
    marked: NDArray[np.bool_] | None = None  # (samples,) those the data has for validation; else they are trained on
    time: NDArray[np.float64] | None = None  # (samples,) when each was, where the latest are held out
    remarks: tuple[str, ...] = ()  # what to say of the columns of a table
    preparation: Preparation | None = None  # what of the inputs and targets is measured on training samples
    course: Course | None = None  # where the clients' data changes: this is how it is in the first round

    def __len__(self) -> int:
        return len(self.train)

    def at(self, round: int) -> Federation:
        """The clients' data as it is in a round, counted from 0; the same object as long as nothing changes."""
        return self if self.course is None else self.course.phases[self.course.phase(round)]

    @cached_property
    def roster(self) -> Roster:
        """What a server knows of the clients: their ids, how much they train on and, where given, their groups."""
        ids, truth = torch.arange(len(self)), crisp(self.truth, self.mixture)
        return Roster(ids, self.train.lengths, grouped(self.groups), truth)

    def sizes(self, ids: Tensor) -> Tensor:
        """How many training samples these clients have."""
        return self.roster.n[ids]

    @cached_property
    def _starts(self) -> Tensor:
        return torch.tensor([0, *(len(d.y) for d in self.domains)]).cumsum(0)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, as a client sees it."""
        return tuple(self.domains[0].take(torch.zeros(1, dtype=torch.int64))[0].shape[1:])

    @property
    def scales(self) -> tuple[Scale | None, ...]:
        """The different ways in which stored numbers become inputs; None: they are inputs as they are (words)."""
        return tuple({b"" if d.scale is None else d.scale.bytes(): d.scale for d in self.domains}.values())

    @property
    def target(self) -> TargetScale | None:
        """How targets are standardised; None where they are not. One scale for all clients, unless joined."""
        return self.domains[0].target

    def prepared(self, *, inputs: bool = False, targets: bool = False, plan: TablePlan | None = None) -> Federation:
        """With inputs (and the targets of a regression) at mean 0 and deviation 1, as measured on the training samples
        of all clients; plan: how columns with holes or categories become inputs."""
        targets = targets and self.kind == "regression"
        if plan is not None and any(domain.x is not self.domains[0].x for domain in self.domains):
            raise CoterieError(
                "data.partition: a table with categories or missing values cannot be mixed with other data; "
                "use another partition, or data.missing=drop and data.categories=none",
                code="partition-not-applicable",
            )
        if not (inputs or targets or plan is not None):
            return self
        how = Preparation(tuple(domain.x for domain in self.domains), inputs, targets, plan)
        numbers = inputs or (plan is not None and plan.standardise)
        asked = {"inputs": ("standardise", numbers), "targets": ("standardise_y", targets)}
        what = {name: f"{key}=false" for name, (key, wanted) in asked.items() if wanted}
        instead = f"{' and '.join(what.values())} leaves them as they are"
        said = (f"standardised by the training samples: {' and '.join(what)} ({instead})",) if what else ()
        return replace(self, preparation=how, remarks=(*self.remarks, *said)).measured()

    def measured(self, clients: Tensor | None = None) -> Federation:
        """The same, measured again on the training samples of these clients (None: of all), in all rounds.

        Nothing else is looked at: no validation samples, no test samples, nobody who joins later.
        """
        how = self.preparation
        if how is None:
            return self
        if self.course is not None:
            theirs = self.course.rows if clients is None else self.course.rows[:, clients.numpy()]
            pool = self.course.pool.measured(torch.from_numpy(np.unique(theirs)))
            made = replace(self, domains=pool.domains, features=pool.features, remarks=pool.remarks)
            return replace(made, course=replace(self.course, pool=pool))
        rows = self.train if clients is None else self.train.take(clients.numpy())
        numbers = rows.numbers.unique()
        if not len(numbers):
            return self
        x, places = how.stored[0], numbers % len(how.stored[0])
        domains, features, remarks = self.domains, self.features, self.remarks
        if how.plan is not None:
            table, x = how.plan.fit(x, places.unique())
            unseen = [f"{column.name} ({listed(column.unseen)})" for column in table.columns if column.unseen]
            said = tuple(remark for remark in remarks if not remark.startswith(UNSEEN))
            domains = tuple(replace(domain, x=x, scale=table) for domain in domains)
            features, remarks = table.inputs, (*said, *([f"{UNSEEN}: {', '.join(unseen)}"] if unseen else ()))
        elif how.inputs:
            divisor = 1.0 if (first := domains[0].scale) is None else first.divisor
            scale = standard_scale(_finite(self._stored(numbers)), divisor)
            domains = tuple(replace(domain, scale=scale) for domain in domains)
        if how.targets:
            target = TargetScale.of(_finite(self._targets(numbers)))
            domains = tuple(replace(domain, target=target) for domain in domains)
        return replace(self, domains=domains, features=features, remarks=remarks)

    def _stored(self, numbers: Tensor) -> Tensor:
        """The inputs of these samples, domain by domain, as they are stored."""
        first, found = 0, []
        for domain in self.domains:
            mine = numbers[(numbers >= first) & (numbers < first + len(domain.y))]
            found.append(domain.x[mine - first])
            first += len(domain.y)
        return torch.cat(found)

    @cached_property
    def target_means(self) -> Tensor:
        """(N, targets) the mean of each client's training targets, in original units."""
        lengths, y = self.train.lengths, self._targets(self.train.numbers).double()
        owner = torch.arange(len(self)).repeat_interleave(lengths)
        return y.new_zeros(len(self), y.shape[1]).index_add_(0, owner, y) / lengths.clamp(min=1)[:, None]

    def _targets(self, numbers: Tensor) -> Tensor:
        """(n, targets) as stored."""
        where = torch.searchsorted(self._starts, numbers, right=True) - 1
        found = self.domains[0].y.new_empty(len(numbers), self.outputs)
        for d in where.unique().tolist():
            found[where == d] = self.domains[d].y[numbers[where == d] - self._starts[d]].reshape(-1, self.outputs)
        return found

    def domain_of(self, client: int) -> Domain:
        """The domain of a client's first sample."""
        return self.domains[int(torch.searchsorted(self._starts, self.train.row(client)[0], right=True)) - 1]

    def client(self, client: int) -> ClientData:
        """The data of one client."""
        return ClientData(self, client)

    def rows(self, split: Split) -> Ragged:
        """The samples of a split, client by client."""
        if split == "val":
            return self.val or Ragged.of([()] * len(self))
        return self.train if split == "train" else self.test

    def samples(self, client: int, split: Split) -> Samples:
        """The inputs and labels of one client, scaled."""
        return self.taken(self.rows(split).row(client))

    def seen_through(self, domain: int, split: Split) -> Samples:
        """Everyone's samples of one domain: of one distribution, where clients mix several."""
        numbers = self.rows(split).numbers
        where = torch.searchsorted(self._starts, numbers, right=True) - 1
        return self.taken(numbers[where == domain])

    def together(self, clients: Tensor, split: Split) -> tuple[Tensor, Tensor, Tensor]:
        """The samples of many clients end to end, and how many are whose."""
        rows = self.rows(split)
        lengths = rows.ends[clients + 1] - rows.ends[clients]
        ahead = rows.ends[clients] - (lengths.cumsum(0) - lengths)  # of a client's place here, its place in the numbers
        x, y = self.taken(rows.numbers[torch.arange(int(lengths.sum())) + ahead.repeat_interleave(lengths)])
        return x, y, lengths

    def taken(self, numbers: Tensor) -> Samples:
        """The samples of these numbers, as their clients see them."""
        where = torch.searchsorted(self._starts, numbers, right=True) - 1
        if not len(numbers) or bool((where == where[0]).all()):
            domain = int(where[0]) if len(numbers) else 0
            x, y = self.domains[domain].take(numbers - self._starts[domain])
            return channels_last(x), y
        parts = [(d, torch.nonzero(where == d)[:, 0]) for d in where.unique().tolist()]
        taken = [self.domains[d].take(numbers[rows] - self._starts[d]) for d, rows in parts]
        back = torch.argsort(torch.cat([rows for _, rows in parts]))
        x, y = torch.cat([t[0] for t in taken])[back], torch.cat([t[1] for t in taken])[back]
        return channels_last(x), y

    @staticmethod
    def of(data: Federation | Sequence[tuple[ArrayLike, ...]], task: Kind | None = None) -> Federation:
        """A federation as it is, or one of a list of clients' arrays (see `from_arrays`)."""
        if isinstance(data, Federation):
            return data
        if isinstance(data, Sequence) and all(isinstance(client, tuple | list) for client in data):
            return Federation.from_arrays(data, task=task)
        found = f"got a {type(data).__name__}; see coterie.Federation.from_arrays"
        raise CoterieError(f"data: expected a Federation or a list of (x, y) per client, {found}", code="data-type")

    @staticmethod
    @explained_call
    def from_arrays(
        clients: Sequence[tuple[ArrayLike, ...]],
        *,
        test: float = 0.2,
        truth: Sequence[int] | None = None,
        outputs: int | None = None,
        seed: int = 0,
        task: Kind | None = None,
        names: Sequence[str] | None = None,
        standardise: Standardise = "auto",
        standardise_y: Standardise = "auto",
        missing: Missing = "mean",
        categories: Categories = "auto",
        leave_out: Sequence[str] = (),
        time: str | None = None,
        groups: Sequence[str | None] | None = None,
    ) -> Federation:
        """Your own data: per client (x, y), split at random, (x_train, y_train, x_test, y_test), or with x_val, y_val
        before x_test (trained on unless the run validates).

        Arrays or tensors. task: "classification" or "regression"; None: whole numbers and names are labels, other
        numbers targets of a regression. outputs: the number of classes (or targets) when the data does not show all.
        names: of the clients. standardise, standardise_y: inputs, and the targets of a regression, to mean 0 and
        deviation 1, as measured on all training samples; metrics and predictions stay in the targets' own units. auto:
        all of them but images (bytes, which are divided by 255, and what lies in [0, 1]), whole numbers without column
        names (they may stand for words), and targets that are labels written as floats.
        missing, categories, leave_out, time: as in `coterie.data.CSV`. groups: of clients, for `given` (None: unknown).
        """
        from coterie.data.clients import from_arrays

        rules = ColumnRules(missing, categories, leave_out)  # type: ignore[arg-type]  # pydantic makes a tuple of it
        return from_arrays(
            clients, test, truth, outputs, seed, task, names, (standardise, standardise_y), rules, time, groups
        )

    def take(self, clients: ArrayLike, note: str = "") -> Federation:
        """A federation of these clients, numbered anew in this order; a client may come twice."""
        chosen = np.asarray(clients)
        return replace(
            self,
            train=self.train.take(chosen),
            test=self.test.take(chosen),
            val=None if self.val is None else self.val.take(chosen),
            truth=None if self.truth is None else self.truth[chosen],
            mixture=None if self.mixture is None else self.mixture[chosen],
            names=None if self.names is None else tuple(self.names[c] for c in chosen),
            groups=None if self.groups is None else tuple(self.groups[c] for c in chosen),
            course=None if self.course is None else self.course.of(chosen),
            note=", ".join(part for part in (self.note, note) if part),
        )

    @staticmethod
    def join(parts: Sequence[Federation], name: str) -> Federation:
        """Several federations of one kind as one; the true cluster of a client is the part it came from."""
        for part in parts:
            unchanging(part, "joining federations")
        starts = np.cumsum([0, *(int(part._starts[-1]) for part in parts)])
        times = [part.time for part in parts if part.time is not None]
        return Federation(
            tuple(domain for part in parts for domain in part.domains),
            train=Ragged.join([part.train for part in parts], starts),
            test=Ragged.join([part.test for part in parts], starts),
            kind=parts[0].kind,
            outputs=max(part.outputs for part in parts),
            truth=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
            names=end_to_end([part.names for part in parts]),
            name=name,
            note=", ".join(part.note for part in parts if part.note),
            marked=joined_marks([part.marked for part in parts], starts),
            time=np.concatenate(times) if len(times) == len(parts) else None,
        )

    def checksum(self) -> int:
        """Of all samples and who has them: other data, other number."""
        crc = 0
        for part in (*self.domains, self.train, self.test, *(() if self.val is None else (self.val,))):
            crc = part.checksum(crc)
        return crc if self.course is None else self.course.checksum(crc)

    def identity(self) -> str:
        """What must agree for a checkpoint to be of this data."""
        return f"{Federation.describe(self)}, checksum {self.checksum():08x}"

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def describe(self) -> str:
        """One line: clients, samples and classes of a client (min/median/max), true clusters or distributions."""
        parts = [
            f"{self.name}: {counted(len(self), 'client')}",
            f"{int(self.train.lengths.sum()):,} training samples ({spread(self.train.lengths.numpy())})",
            *(() if self.val is None else (f"{len(self.val.numbers):,} validation samples",)),
            f"{len(self.test.numbers):,} test samples",
        ]
        if self.kind == "classification" and len(self):
            parts.append(
                f"classes per client {spread(self.labels_per_client()).removesuffix(' each')} of {self.outputs}"
            )
        if self.truth is not None:
            parts.append(f"{len(np.unique(self.truth))} true clusters")
        if self.groups is not None:
            parts.append(f"{len(set(self.groups) - {None})} groups given")
        if self.mixture is not None:
            parts.append(f"mixtures of {self.mixture.shape[1]} distributions")
        return ", ".join([*parts, *([self.note] if self.note else [])])

    def labels_per_client(self) -> NDArray[np.int64]:
        """(N,) how many different labels a client trains on."""
        seen = np.zeros((len(self), max(self.outputs, 1)), dtype=bool)
        seen[self.train.owners(), self.labels(self.train)] = True
        return np.asarray(seen.sum(1))

    def labels(self, split: Ragged) -> NDArray[np.int64]:
        """The label of every sample of a split, as its client sees it."""
        found = np.empty(len(split.numbers), dtype=np.int64)
        where = torch.searchsorted(self._starts, split.numbers, right=True) - 1
        for d in where.unique().tolist():
            rows = where == d
            found[rows.numpy()] = self.domains[d].labels(split.numbers[rows] - self._starts[d]).numpy()
        # What is wrong with a label outside the head is said by `check`; here it only must not break the counting.
        return np.clip(found, 0, max(self.outputs, 1) - 1)

    def check(self) -> Federation:
        """Refuse data that cannot be trained on, naming the client: no samples, NaN or Inf, labels out of range."""
        if not len(self):
            raise CoterieError("data: a federation needs at least one client", code="data-empty")
        empty = torch.nonzero(self.train.lengths == 0)
        if len(empty):
            who = client_name(self.names, int(empty[0]))
            raise CoterieError(f"data: {who} has no training samples; leave it out or give it some", code="data-empty")
        for domain in self.domains:
            for fault in domain.faults(self.kind, self.outputs):
                self._refuse(fault)
        for later in () if self.course is None else self.course.phases[1:]:
            later.check()
        return self

    def _refuse(self, fault: Fault) -> None:
        """Raise for the first client that has such samples; samples that no client has do no harm."""
        for client in range(len(self)):
            if any(fault.is_in(*self.samples(client, split)) for split in ("train", "val", "test")):
                raise CoterieError(
                    f"data: {client_name(self.names, client)} {fault.text}",
                    code="data-labels" if fault.what == "label" else "data-not-finite",
                )


def _finite(values: Tensor) -> Tensor:
    """Those samples that can be measured: what is wrong with the others is said by `check`, with the client."""
    whole = values.reshape(len(values), -1).isfinite().all(1)
    return values if bool(whole.all()) or not bool(whole.any()) else values[whole]
