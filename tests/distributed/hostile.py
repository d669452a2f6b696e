"""A registered client with bad intentions: garbage, a wrong shape, far too much, and then it behaves."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from coterie.network.certs import client_files
from coterie.network.desk import Desk
from coterie.network.errand import Report, read_as_server
from coterie.network.node import Membership, attend
from coterie.network.own import own_data
from coterie.network.shelf import Folder
from coterie.network.wire import Packed, Parcel, pack_up


class Hostile(Desk):
    """Bends its first answers."""

    turns = 0

    def answer(self, parcel: Parcel) -> Parcel:
        honest = super().answer(parcel)
        report = read_as_server(honest)
        if not isinstance(report, Report):
            return honest
        Hostile.turns += 1
        if Hostile.turns == 1:
            return Parcel('{"is": "Popen", "args": ["touch", "/tmp/x"]}', ())
        if Hostile.turns == 2 and report.answers and hasattr(report.answers[0], "theta"):
            answer: Any = report.answers[0]
            wrong = dataclasses.replace(answer, theta=answer.theta[:-3].clone())
            return pack_up(dataclasses.replace(report, answers=(wrong,)))
        if Hostile.turns == 3:
            return Parcel(honest.outline, (*honest.arrays, Packed("uint8", (12 << 20,), bytes(12 << 20))))
        return honest


if __name__ == "__main__":
    server, key, data, state = sys.argv[1:]
    files = client_files(Path(key))
    desk = Hostile(files.name, lambda: own_data(data), Folder(Path(state) / "kept"), say=print)
    attend(Membership(server, files), desk, Path(state) / "flower", say=print)
