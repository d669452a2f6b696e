"""The clients' data: samples held once, clients as index arrays into them.

A `Domain` is one way to look at a table of samples (turned, relabelled); its samples are numbered
after those of the domain before it, and a client is a list of such numbers. A million clients cost
a million short index rows, not copies. What is hidden from methods (`truth`) is kept for metrics.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.errors import CoterieError
from coterie.layout import channels_last
from coterie.tasks import Roster

Kind: TypeAlias = Literal["classification", "regression"]
Samples: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Scale:
    """How stored numbers become inputs: (x / divisor - mean) / std, with numbers or tensors that fit a sample."""

    divisor: float = 1.0
    mean: float | Tensor = 0.0
    std: float | Tensor = 1.0

    def __call__(self, x: Tensor | ArrayLike) -> Tensor:
        stored = x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))
        x = stored.to(torch.get_default_dtype())
        if self.plain:
            return x
        # In place where `to` has made a copy: a client's samples are scaled anew for every visit.
        x = x / self.divisor if x is stored else x.div_(self.divisor)
        return x.sub_(self.mean).div_(self.std)

    @property
    def uniform(self) -> bool:
        """The same for every number of a sample, wherever it lies."""
        return isinstance(self.mean, float) and isinstance(self.std, float)

    @property
    def plain(self) -> bool:
        """Whether it leaves numbers as they are."""
        return self.uniform and (self.divisor, self.mean, self.std) == (1.0, 0.0, 1.0)

    def bytes(self) -> bytes:
        """What it does, for a checksum."""
        parts = (torch.as_tensor(value, dtype=torch.float64) for value in (self.divisor, self.mean, self.std))
        return b"".join(part.contiguous().numpy().tobytes() for part in parts)


@dataclass(frozen=True, eq=False)
class Domain:
    """A table of samples, seen through a scale, a quarter turn or a change of labels."""

    x: Tensor  # (n, ...) as stored: bytes, half precision, ...
    y: Tensor  # (n,) int64 labels, or (n, outputs) targets
    scale: Scale | None = Scale()  # None: as they are (the numbers of words)
    turns: int = 0  # quarter turns counter-clockwise over the last two axes
    relabel: Tensor | None = None  # new label of each old one

    def take(self, rows: Tensor) -> Samples:
        """These samples, as the clients of this domain see them."""
        x, y = self.x[rows], self.y[rows]
        early = self.scale is None or self.scale.uniform  # then it may be turned first, while it is small
        x = self._turned(x) if early else x
        x = self.inputs(channels_last(x))
        return x if early else self._turned(x), y if self.relabel is None else self.relabel[y]

    def _turned(self, x: Tensor) -> Tensor:
        return torch.rot90(x, self.turns, (-2, -1)) if self.turns % 4 else x

    def inputs(self, x: Tensor) -> Tensor:
        """What a network is given for samples as stored (not turned)."""
        return x if self.scale is None else self.scale(x)


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

    def __len__(self) -> int:
        return len(self.ends) - 1

    def row(self, client: int) -> Tensor:
        """The sample numbers of a client."""
        return self.numbers[self.ends[client] : self.ends[client + 1]]

    @property
    def lengths(self) -> Tensor:
        """How many samples each client has."""
        return self.ends.diff()


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
    def test(self) -> Samples:
        """Test inputs and labels."""
        return self.federation.samples(self.client, "test")


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
    left_out: tuple[str, ...] = ()  # columns of a table that are no inputs, for they have no numbers
    class_names: tuple[str, ...] | None = None  # where labels are numbered names

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def roster(self) -> Roster:
        """What a server knows of the clients: their ids and how much they train on."""
        return Roster(torch.arange(len(self)), self.train.lengths)

    def sizes(self, ids: Tensor) -> Tensor:
        """How many training samples these clients have."""
        return self.roster.n[ids]

    @cached_property
    def _starts(self) -> Tensor:
        return torch.tensor([0, *(len(d.y) for d in self.domains)]).cumsum(0)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample, as a client sees it."""
        first = self.domains[0]
        return tuple(first.take(torch.zeros(1, dtype=torch.int64))[0].shape[1:])

    @property
    def scales(self) -> tuple[Scale | None, ...]:
        """The different ways in which stored numbers become inputs; None: they are inputs as they are (words)."""
        return tuple({b"" if d.scale is None else d.scale.bytes(): d.scale for d in self.domains}.values())

    def domain_of(self, client: int) -> Domain:
        """The domain of a client's first sample."""
        return self.domains[int(torch.searchsorted(self._starts, self.train.row(client)[0], right=True)) - 1]

    def client(self, client: int) -> ClientData:
        """The data of one client."""
        return ClientData(self, client)

    def samples(self, client: int, split: Literal["train", "test"]) -> Samples:
        """The inputs and labels of one client, scaled."""
        return self._taken((self.train if split == "train" else self.test).row(client))

    def seen_through(self, domain: int, split: Literal["train", "test"]) -> Samples:
        """Everyone's samples of one domain: of one distribution, where clients mix several."""
        numbers = (self.train if split == "train" else self.test).numbers
        where = torch.searchsorted(self._starts, numbers, right=True) - 1
        return self._taken(numbers[where == domain])

    def together(self, clients: Tensor, split: Literal["train", "test"]) -> tuple[Tensor, Tensor, Tensor]:
        """The samples of many clients end to end, and how many are whose."""
        rows = self.train if split == "train" else self.test
        lengths = rows.ends[clients + 1] - rows.ends[clients]
        ahead = rows.ends[clients] - (lengths.cumsum(0) - lengths)  # of a client's place here, its place in the numbers
        x, y = self._taken(rows.numbers[torch.arange(int(lengths.sum())) + ahead.repeat_interleave(lengths)])
        return x, y, lengths

    def _taken(self, numbers: Tensor) -> Samples:
        """These samples, scaled."""
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
    def of(data: Federation | Sequence[tuple[ArrayLike, ...]]) -> Federation:
        """A federation as it is, or one of a list of clients' arrays (see `from_arrays`)."""
        if isinstance(data, Federation):
            return data
        if isinstance(data, Sequence) and all(isinstance(client, tuple | list) for client in data):
            return Federation.from_arrays(data)
        raise CoterieError(
            f"data: expected a Federation or a list of (x, y) per client, got a {type(data).__name__}; "
            "coterie.Federation.from_arrays makes one"
        )

    @staticmethod
    def from_arrays(
        clients: Sequence[tuple[ArrayLike, ...]],
        *,
        test: float = 0.2,
        truth: Sequence[int] | None = None,
        outputs: int | None = None,
        seed: int = 0,
    ) -> Federation:
        """Your own data: per client (x, y), split at random, or (x_train, y_train, x_test, y_test).

        Arrays or tensors; integer labels make a classification, floating-point targets a regression.
        `outputs` is the number of classes (or targets) when the data does not show all of them.
        """
        from coterie.data.own import from_arrays

        return from_arrays(clients, test=test, truth=truth, outputs=outputs, seed=seed)

    def take(self, clients: ArrayLike, note: str = "") -> Federation:
        """A federation of these clients, numbered anew in this order; a client may come twice."""
        chosen = np.asarray(clients)
        return replace(
            self,
            train=self.train.take(chosen),
            test=self.test.take(chosen),
            truth=None if self.truth is None else self.truth[chosen],
            mixture=None if self.mixture is None else self.mixture[chosen],
            names=None if self.names is None else tuple(self.names[c] for c in chosen),
            note=", ".join(part for part in (self.note, note) if part),
        )

    @staticmethod
    def join(parts: Sequence[Federation], name: str) -> Federation:
        """Several federations of one kind as one; the true cluster of a client is the part it came from."""
        starts = np.cumsum([0, *(int(part._starts[-1]) for part in parts)])
        splits = []
        for split in ([part.train for part in parts], [part.test for part in parts]):
            numbers = torch.cat([rows.numbers + int(start) for rows, start in zip(split, starts, strict=False)])
            lengths = torch.cat([rows.lengths for rows in split])
            splits.append(Ragged(numbers, torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])))
        return Federation(
            tuple(domain for part in parts for domain in part.domains),
            train=splits[0],
            test=splits[1],
            kind=parts[0].kind,
            outputs=max(part.outputs for part in parts),
            truth=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
            name=name,
            note=", ".join(part.note for part in parts if part.note),
        )

    def checksum(self) -> int:
        """Of all samples and who has them: other data, other number."""
        crc = 0
        for domain in self.domains:
            crc = zlib.crc32(f"{domain.turns} {domain.relabel}".encode(), crc)
            crc = zlib.crc32(b"" if domain.scale is None else domain.scale.bytes(), crc)
            for table in (domain.x, domain.y):
                crc = zlib.crc32(table.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
        for split in (self.train, self.test):
            for numbers in (split.numbers, split.ends):
                crc = zlib.crc32(numbers.contiguous().numpy().data, crc)
        return crc

    def identity(self) -> str:
        """What must agree for a checkpoint to be of this data."""
        return f"{self.describe()}, checksum {self.checksum():08x}"

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def describe(self) -> str:
        """One line: clients, samples and classes of a client (min/median/max), true clusters or distributions."""
        parts = [
            f"{self.name}: {len(self):,} clients",
            f"{int(self.train.lengths.sum()):,} training samples ({_spread(self.train.lengths.numpy())})",
            f"{len(self.test.numbers):,} test samples",
        ]
        if self.kind == "classification" and len(self):
            parts.append(
                f"classes per client {_spread(self.labels_per_client()).removesuffix(' each')} of {self.outputs}"
            )
        if self.truth is not None:
            parts.append(f"{len(np.unique(self.truth))} true clusters")
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
            domain = self.domains[d]
            y = domain.y[split.numbers[rows] - self._starts[d]]
            found[rows.numpy()] = (y if domain.relabel is None else domain.relabel[y]).numpy()
        # What is wrong with a label outside the head is said by `check`; here it only must not break the counting.
        return np.clip(found, 0, max(self.outputs, 1) - 1)

    def check(self) -> Federation:
        """Refuse what no training could survive, naming the client: no data, NaN or Inf, labels outside the head."""
        if not len(self):
            raise CoterieError("data: a federation needs at least one client")
        empty = torch.nonzero(self.train.lengths == 0)
        if len(empty):
            raise CoterieError(f"data: client {int(empty[0])} has no training samples; leave it out or give it some")
        for domain in self.domains:
            if domain.x.is_floating_point() and not bool(domain.x.isfinite().all()):
                self._blame("x", "has NaN or Inf in its inputs; clean or drop those samples")
            if domain.y.is_floating_point() and not bool(domain.y.isfinite().all()):
                self._blame("y", "has NaN or Inf in its targets; clean or drop those samples")
            if self.kind == "classification" and len(domain.y):
                labels = domain.y if domain.relabel is None else domain.relabel[domain.y]
                if int(labels.min()) < 0 or int(labels.max()) >= self.outputs:
                    self._blame(
                        "label",
                        f"has a label outside 0..{self.outputs - 1}; raise `outputs` or map the labels",
                    )
        return self

    def _blame(self, what: Literal["x", "y", "label"], fault: str) -> None:
        for client in range(len(self)):
            for x, y in (self.samples(client, "train"), self.samples(client, "test")):
                if what == "label":
                    bad = bool(((y < 0) | (y >= self.outputs)).any())
                else:
                    bad = not bool((x if what == "x" else y).isfinite().all())
                if bad:
                    raise CoterieError(f"data: client {client} {fault}")


def _spread(counts: NDArray[np.int64]) -> str:
    low, middle, high = int(counts.min()), int(np.median(counts)), int(counts.max())
    return f"{low:,} each" if low == high else f"min/median/max {low:,}/{middle:,}/{high:,}"
