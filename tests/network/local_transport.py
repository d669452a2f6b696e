"""A transport without a network: payloads go to workers in this process, and things go wrong where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from coterie.data.federation import Federation
from coterie.network.client_state import DirectoryStore
from coterie.network.engine import NoReply, Outgoing
from coterie.network.wire import Payload
from coterie.network.worker import ClientWorker

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
class LocalTransport:
    """Nodes are workers; `bend` may change what a node answers (None: it never answers)."""

    workers: dict[int, ClientWorker] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    bend: Callable[[int, Payload], Payload | NoReply | None] = lambda _, payload: payload
    before: Callable[[], None] = lambda: None
    sent: list[Outgoing] = field(default_factory=list)
    _ready: dict[str, Payload | NoReply] = field(default_factory=dict)

    def connected(self) -> Mapping[int, str]:
        self.before()
        return {node: self.keys.get(node, "") for node in self.workers}

    def send(self, messages: Sequence[Outgoing], keep_for: float) -> list[str | None]:
        message_ids: list[str | None] = []
        for message in messages:
            self.sent.append(message)
            message_id = str(len(self.sent))
            if message.node not in self.workers:
                message_ids.append(None)
                continue
            answer = self.bend(message.node, self.workers[message.node].answer(message.payload))
            if answer is not None:
                self._ready[message_id] = answer
            message_ids.append(message_id)
        return message_ids

    def collect(self, message_ids: Sequence[str], within: float) -> list[tuple[str, Payload | NoReply]]:
        return [(message_id, self._ready.pop(message_id)) for message_id in message_ids if message_id in self._ready]


def worker(number: int, arrays: Arrays, folder: Path) -> ClientWorker:
    """Client `number`'s worker; names sort as numbers do."""
    name = f"c{number:02d}"
    return ClientWorker(
        name, lambda: Federation.from_arrays([arrays], outputs=3, standardise=False), DirectoryStore(folder / name)
    )


def transport_of(clients: Sequence[Arrays], folder: Path) -> LocalTransport:
    """Client i is behind node 100 + i."""
    return LocalTransport({100 + i: worker(i, arrays, folder) for i, arrays in enumerate(clients)})
