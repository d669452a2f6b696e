"""A registered client with bad intentions: garbage, a wrong shape, far too much, and then it behaves."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from coterie.network.certificates import client_files
from coterie.network.client_data import own_data
from coterie.network.client_state import DirectoryStore
from coterie.network.flower.supernode import ServerConnection, run_client
from coterie.network.messages import VisitReply, read_as_server
from coterie.network.wire import EncodedTensor, Payload, encode
from coterie.network.worker import ClientWorker


class Hostile(ClientWorker):
    """Bends its first answers."""

    turns = 0

    def answer(self, payload: Payload) -> Payload:
        honest = super().answer(payload)
        report = read_as_server(honest)
        if not isinstance(report, VisitReply):
            return honest
        Hostile.turns += 1
        if Hostile.turns == 1:
            return Payload('{"is": "Popen", "args": ["touch", "/tmp/x"]}', ())
        if Hostile.turns == 2 and report.answers and hasattr(report.answers[0], "theta"):
            answer: Any = report.answers[0]
            wrong = dataclasses.replace(answer, theta=answer.theta[:-3].clone())
            return encode(dataclasses.replace(report, answers=(wrong,)))
        if Hostile.turns == 3:
            return Payload(honest.outline, (*honest.arrays, EncodedTensor("uint8", (12 << 20,), bytes(12 << 20))))
        return honest


if __name__ == "__main__":
    server, key, data, state = sys.argv[1:]
    files = client_files(Path(key))
    worker = Hostile(files.name, lambda: own_data(data), DirectoryStore(Path(state) / "kept"), say=print)
    run_client(ServerConnection(server, files), worker, Path(state) / "flower", say=print)
