"""The audit log of a server: who was let in, who and what was refused, and when; one JSON object per line.

Two processes write to it, the server and the guard in front of its SuperLink: every line is one write at the end of the
file. Only the user that runs the server may read it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from coterie.core.files import writing

AuditEvent = Literal[
    "key-added",
    "key-removed",
    "joined",
    "refused",
    "reply-refused",
    "isolated",
    "banned",
    "request-refused",
    "connection-refused",
]
LONGEST = 500  # characters of a reason: some of it may be a stranger's own words
SILENCE = 60.0  # seconds in which the same refusal of the same address is counted, not written
ADDRESSES = 1000  # different refusals that are counted at a time; further ones are counted together


@dataclass(frozen=True)
class AuditEntry:
    """What a line says, beside when: fields that are empty are left out."""

    event: AuditEvent
    reason: str = ""
    client: str = ""  # its name
    node: int = 0  # Flower's number of its connection
    address: str = ""  # where a request or a connection came from
    path: str = ""  # of a request
    status: int = 0  # of the answer to a request (HTTP)
    times: int = 1  # how often


class AuditLog:
    """Writes entries to a file that only this user may read; the first entry makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, entry: AuditEntry) -> None:
        """Add a line; an error if it cannot be written, because nothing may be refused or admitted unnoted."""
        told = {k: v for k, v in asdict(entry).items() if v not in ("", 0)}
        told["reason"] = entry.reason[:LONGEST]
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"time": moment, **told}).encode() + b"\n"
        with writing(self.path):
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if os.name != "nt":
                    os.fchmod(handle, 0o600)  # where a copy of it was made with another mode
                os.write(handle, line)
            finally:
                os.close(handle)


def no_audit(entry: AuditEntry) -> None:
    """Where there is no run directory, nothing is noted."""


class Throttled:
    """Notes refusals of strangers: each once, then how often it was repeated, so that they cannot fill the disk."""

    def __init__(self, note: Callable[[AuditEntry], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._note, self._clock = note, clock
        self._counts: dict[tuple[str, str, str], _Count] = {}

    def note(self, entry: AuditEntry) -> None:
        """A line for the first of its kind, or one more to count."""
        now = self._clock()
        self.flush(now)
        key = (entry.event, entry.address, entry.reason)
        if key not in self._counts and len(self._counts) >= ADDRESSES:
            entry = AuditEntry(entry.event, "further refusals, from many addresses")
            key = (entry.event, "", entry.reason)
        if key in self._counts:
            self._counts[key].more += 1
            return
        self._counts[key] = _Count(entry, now)
        self._note(entry)

    def flush(self, now: float | None = None) -> None:
        """Write what was counted long enough ago; without a time, all of it."""
        over = [key for key, count in self._counts.items() if now is None or now - count.since >= SILENCE]
        for key in over:
            count = self._counts.pop(key)
            if count.more:
                self._note(AuditEntry(**asdict(count.entry) | {"times": count.more}))


@dataclass
class _Count:
    entry: AuditEntry
    since: float
    more: int = 0
