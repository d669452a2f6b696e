"""Clients that come and go: a server that knows no more of a federation than it would of a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.core.model import Model
from coterie.core.tables import Clients, Roster
from coterie.data.federation import Federation
from coterie.engines.contract import Missing, Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.training.events import Event, RoundDone, RunStarted

CLIENTS, FIRST = 16, 12
JOIN, LEAVE, RETURNED = (12, 13, 14, 15), (1, 6, 13), 6  # after rounds 3 and 5; client 6 is back in round 7
GONE = (1, 13)
TRUTH = tuple(i % 2 for i in range(CLIENTS))


def arrays() -> list[tuple[Tensor, ...]]:
    """Four classes: all agree on what the sign of the first input says, and odd clients differ from even ones in what
    the sign of the second does. One model is right half of the time, a group's own always; chance is a quarter."""
    out: list[tuple[Tensor, ...]] = []
    for client in range(CLIENTS):
        rng, n = np.random.default_rng(300 + client), 16 + 3 * (client % 5)
        x = torch.from_numpy(rng.normal(size=(n + 20, 4))).float()
        y = 2 * (x[:, 0] > 0).long() + (x[:, 1] * (1 if TRUTH[client] else -1) > 0).long()
        out.append((x[:n], y[:n], x[n:], y[n:]))
    return out


def toy() -> Federation:
    """Sixteen clients of two kinds."""
    return Federation.from_arrays(arrays(), truth=TRUTH, groups=[f"kind {kind}" for kind in TRUTH], standardise=False)


def linear() -> nn.Module:
    """Enough for either kind."""
    return nn.Linear(4, 4)


def plan(rounds: int) -> list[int]:
    """Who is there when so many rounds are done."""
    there = set(range(FIRST)) | (set(JOIN) if rounds >= 3 else set())
    there -= set(LEAVE) if rounds >= 5 else set()
    return sorted(there | ({RETURNED} if rounds >= 6 else set()))


@dataclass(eq=False)
class Door(Clients):
    """Who is there depends on how many rounds are done; an id is given out when a client first comes."""

    federation: Federation
    there: Callable[[int], Sequence[int]] = plan
    done: int = 0
    given: int = 0
    reads: int = 0
    _rosters: dict[tuple[int, ...], Roster] = field(default_factory=dict)

    @property
    def roster(self) -> Roster:
        """Those that are there now."""
        self.reads += 1
        now = tuple(self.there(self.done))
        self.given = max([self.given, *(c + 1 for c in now)])
        if now not in self._rosters:
            ids = torch.tensor(now, dtype=torch.int64)
            known = self.federation.roster
            self._rosters[now] = Roster(ids, self.federation.sizes(ids), known.groups, known.truth)
        return self._rosters[now]

    @property
    def truth(self) -> NDArray[np.int64] | None:
        """Of those that ever came."""
        return None if self.federation.truth is None else self.federation.truth[: len(self)]

    @property
    def mixture(self) -> NDArray[np.float64] | None:
        """Unknown."""
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that ever came."""
        return tuple(f"hospital {c}" for c in range(len(self)))

    def __len__(self) -> int:
        return max(self.given, len(self.roster.ids) and int(self.roster.ids[-1]) + 1)

    def describe(self) -> str:
        """One line."""
        return "clients that come and go"

    def identity(self) -> str:
        """The same, whoever is there."""
        return "clients that come and go"

    def sizes(self, ids: Tensor) -> Tensor:
        """By id."""
        assert not len(ids) or int(ids.max()) < self.given, "this client was never there"
        return self.federation.sizes(ids)

    def listen(self, event: Event) -> None:
        """Between rounds the door opens."""
        if isinstance(event, RunStarted):
            self.done = event.done
        elif isinstance(event, RoundDone):
            self.done = event.round


@dataclass(frozen=True)
class Trip:
    """Whom a visit went to."""

    round: int  # from 1
    ids: tuple[int, ...]
    keep: bool


class Reaching(Sequential):
    """The reference engine, for clients that are there; it notes whom it was sent to, and when it was told to wait."""

    def __init__(self, model: Model, door: Door) -> None:
        super().__init__(model, door.federation)
        self.door = door
        self.trips: list[Trip] = []
        self.waited: list[int] = []  # how many visits there had been

    def wait(self) -> None:
        """Nothing to wait for; but it must have been said."""
        self.waited.append(len(self.trips))

    def visit(self, visit: Visit) -> Outcome:
        """Only those that are there can be visited."""
        self.trips.append(Trip(visit.moment.round + 1, tuple(visit.ids.tolist()), visit.keep))
        here = torch.isin(visit.ids, self.door.roster.ids)
        outcome = super().visit(Visit(visit.tasks, visit.ids[here], visit.moment, visit.kind))
        away = tuple(Missing(client, "is not there") for client in visit.ids[~here].tolist())
        return Outcome(outcome.replies, (*outcome.missing, *away))
