"""A post without a network: parcels go to desks in this process, and things go wrong where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from coterie.data.federation import Federation
from coterie.network.desk import Desk
from coterie.network.post import Letter, Lost
from coterie.network.shelf import Folder
from coterie.network.wire import Parcel

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def groups(clients: int, seed: int = 0) -> list[Arrays]:
    """Clients of two kinds that disagree about everything: each has 24 samples to train on and 12 to test on."""
    rng = np.random.default_rng(seed)
    made = []
    for client in range(clients):
        x = rng.normal(size=(36, 6)).astype(np.float32)
        y = (x[:, :3].argmax(1) + client % 2) % 3
        made.append((x[:24], y[:24].astype(np.int64), x[24:], y[24:].astype(np.int64)))
    return made


@dataclass
class LocalPost:
    """Nodes are desks; `bend` may change what a node answers (None: it never answers)."""

    desks: dict[int, Desk] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    bend: Callable[[int, Parcel], Parcel | Lost | None] = lambda _, parcel: parcel
    before: Callable[[], None] = lambda: None
    sent: list[Letter] = field(default_factory=list)
    _ready: dict[str, Parcel | Lost] = field(default_factory=dict)

    def present(self) -> Mapping[int, str]:
        self.before()
        return {node: self.keys.get(node, "") for node in self.desks}

    def send(self, letters: Sequence[Letter], keep_for: float) -> list[str | None]:
        tickets: list[str | None] = []
        for letter in letters:
            self.sent.append(letter)
            ticket = str(len(self.sent))
            if letter.node not in self.desks:
                tickets.append(None)
                continue
            answer = self.bend(letter.node, self.desks[letter.node].answer(letter.parcel))
            if answer is not None:
                self._ready[ticket] = answer
            tickets.append(ticket)
        return tickets

    def collect(self, tickets: Sequence[str]) -> list[tuple[str, Parcel | Lost]]:
        return [(ticket, self._ready.pop(ticket)) for ticket in tickets if ticket in self._ready]


def desk(number: int, arrays: Arrays, folder: Path) -> Desk:
    """Client `number`'s desk; names sort as numbers do."""
    name = f"c{number:02d}"
    return Desk(name, lambda: Federation.from_arrays([arrays], outputs=3), Folder(folder / name))


def post_of(clients: Sequence[Arrays], folder: Path) -> LocalPost:
    """Client i is behind node 100 + i."""
    return LocalPost({100 + i: desk(i, arrays, folder) for i, arrays in enumerate(clients)})
