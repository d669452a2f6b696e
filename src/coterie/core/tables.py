"""Tables with a row per client: ids are ids, never positions. Who takes part in a run, and in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieError, suggest
from coterie.core.settings import explained


@explained
@dataclass(frozen=True, eq=False)
class ByClient:
    """A value per client, found by the client's id: `ids` ascending (n,), `values` (n, ...)."""

    ids: Tensor
    values: Tensor

    @staticmethod
    def empty(dtype: torch.dtype = torch.int64, shape: tuple[int, ...] = ()) -> ByClient:
        """A table without clients."""
        return ByClient(torch.empty(0, dtype=torch.int64), torch.empty((0, *shape), dtype=dtype))

    def _rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.searchsorted(self.ids, ids).clamp(max=max(len(self.ids) - 1, 0))
        known = self.ids[rows] == ids if len(self.ids) else torch.zeros_like(ids, dtype=torch.bool)
        return rows, known

    def has(self, ids: Tensor) -> Tensor:
        """Which of these clients have a value."""
        return self._rows(ids)[1]

    def at(self, ids: Tensor, default: int | float | None = None) -> Tensor:
        """The values of these clients, in their order; `default` for clients without one."""
        rows, known = self._rows(ids)
        if bool(known.all()):
            return self.values[rows]
        if default is None:
            raise CoterieError(
                f"client {int(ids[~known][0])} has no value here and no default was given", code="client-no-value"
            )
        out = torch.full((len(ids), *self.values.shape[1:]), default, dtype=self.values.dtype)
        out[known] = self.values[rows[known]]
        return out

    def get(self, client: int) -> Tensor | None:
        """The value of one client; None if it has none."""
        rows, known = self._rows(torch.tensor([client]))
        return self.values[rows[0]] if bool(known[0]) else None

    def only(self, ids: Tensor) -> ByClient:
        """The part of the table that these clients need (what an engine sends)."""
        ids = ids.sort().values
        rows, known = self._rows(ids)
        return ByClient(ids[known], self.values[rows[known]])

    def put(self, ids: Tensor, values: Tensor) -> ByClient:
        """A new table in which these clients have these values, of any shape if it has no other clients."""
        if not len(ids):
            return self
        if values.is_floating_point() and not self.values.is_floating_point():
            raise CoterieError(
                f"a table of {self.values.dtype} cannot hold {values.dtype} without loss", code="task-invalid"
            )
        values, kept = values.to(self.values.dtype), ~torch.isin(self.ids, ids)
        if not bool(kept.any()):
            order = torch.argsort(ids)
            return ByClient(ids[order], values[order])
        everyone = torch.cat([self.ids[kept], ids]).sort().values
        out = torch.empty(len(everyone), *values.shape[1:], dtype=values.dtype)
        out[torch.searchsorted(everyone, self.ids)] = self.values  # large tables are copied once
        out[torch.searchsorted(everyone, ids)] = values
        return ByClient(everyone, out)


@explained
@dataclass(frozen=True, eq=False)
class Roster:
    """Everyone the server knows: client ids, ascending, and the size of their training data."""

    ids: Tensor
    n: Tensor
    groups: ByClient | None = None  # the numbers of the groups that the user has given, of clients that have one
    truth: ByClient | None = None  # the true clusters of a simulation, for comparison only (method `oracle`)
    founders: int | None = None  # ids below this were there when the run began; None: all that there are

    def only(self, here: Tensor) -> Roster:
        """Those of the clients for which `here` (n,) is true."""
        return replace(self, ids=self.ids[here], n=self.n[here])


def grouped(groups: Sequence[str | None] | None) -> ByClient | None:
    """The group of each client 0..N-1 as a number, in the order of the sorted names; who has no group is left out."""
    if groups is None:
        return None
    number = {name: i for i, name in enumerate(sorted({name for name in groups if name is not None}))}
    known = [client for client, name in enumerate(groups) if name is not None]
    values = [number[name] for name in groups if name is not None]
    return ByClient(torch.tensor(known, dtype=torch.int64), torch.tensor(values, dtype=torch.int64))


def crisp(truth: Sequence[int] | np.ndarray | None, mixture: object | None) -> ByClient | None:
    """The true cluster of each client 0..N-1; None where it is unknown, or clients are mixtures."""
    if truth is None or mixture is not None:
        return None
    _, number = np.unique(np.asarray(truth), return_inverse=True)
    return ByClient(torch.arange(len(number)), torch.from_numpy(number.astype(np.int64)))


@explained
@dataclass(frozen=True)
class Counted:
    """A number of clusters that a rule chose, how each number scored, and why it is this one."""

    k: int
    rule: str
    clients: int  # from which the rule chose
    scores: tuple[tuple[int, float], ...]  # (k, its score), as far as they were worth computing
    reason: str

    def __str__(self) -> str:
        scores = ", ".join(f"{k}: {score:.2f}" for k, score in self.scores)
        return f"k = {self.k} by {self.rule}, from {self.clients} clients: {self.reason}" + (
            f" (score by k: {scores})" if scores else ""
        )


@explained
@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of a round, the method's random generator for it, and a record of how it chose k."""

    ids: Tensor
    round: int  # from 0
    roster: Roster
    rng: np.random.Generator = field(repr=False)
    counted: list[Counted] = field(default_factory=list, repr=False)


class Clients(Protocol):
    """Clients come and go. An id is assigned once and never reused: ids are 0..len-1, including absent clients.

    A `Federation`, which has all the data, implements this: all its clients are always present.
    """

    @property
    def roster(self) -> Roster:
        """The clients that can be asked now, by ascending id; the same object as long as nothing has changed."""

    @property
    def truth(self) -> NDArray[np.int64] | None:
        """(len,) the true cluster of each client, if known."""

    @property
    def mixture(self) -> NDArray[np.float64] | None:
        """(len, S) the share of each distribution in a client's data, if known."""

    @property
    def names(self) -> tuple[str, ...] | None:
        """(len,) the names of the clients, if they have names."""

    def __len__(self) -> int:
        """The number of ids assigned so far."""

    def describe(self) -> str:
        """One line about them."""

    def identity(self) -> str:
        """Identifies these clients in a checkpoint; it does not change as clients come and go."""

    def sizes(self, ids: Tensor) -> Tensor:
        """How many training samples these clients have, including absent ones."""


@runtime_checkable
class ChangingClients(Protocol):
    """Clients of a simulation whose data may change by round."""

    def at(self, round: int) -> Clients:
        """The clients as they are in a round, counted from 0."""


def clients_at(clients: Clients, round: int) -> Clients:
    """The clients as they are in a round; over a network nobody knows how their data changes."""
    return clients.at(round) if isinstance(clients, ChangingClients) else clients


@runtime_checkable
class NamesData(Protocol):
    """Clients whose columns and classes have known names."""

    @property
    def features(self) -> tuple[str, ...] | None:
        """The names of the inputs, if they have names."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of the classes, if labels are numbered names."""


def number_of(clients: Clients, client: int | str) -> int:
    """The id of a client, given by id or by name."""
    if isinstance(client, str):
        if clients.names is None or client not in clients.names:
            known = " They have none." if clients.names is None else suggest(client, clients.names)
            raise CoterieError(f"no client has the name '{client}'.{known}", code="client-unknown")
        return clients.names.index(client)
    if isinstance(client, bool) or not isinstance(client, int | np.integer):
        raise CoterieError(f"a client is a number or a name, not {client!r}", code="client-invalid")
    names = clients.names or ()
    if str(client) in names and not (client < len(names) and names[client] == str(client)):
        # If names are numbers, an int is ambiguous, and the user could silently get another client's model.
        other = f", or '{names[client]}' for the one of that number" if 0 <= client < len(names) else ""
        raise CoterieError(f"client {client}: that is a name here; write '{client}'{other}", code="client-unknown")
    if not 0 <= client < len(clients):
        raise CoterieError(
            f"client {client}, but there are {len(clients)}: 0..{len(clients) - 1}", code="client-unknown"
        )
    return int(client)
