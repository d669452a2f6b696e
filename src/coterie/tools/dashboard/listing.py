"""The runs below a directory, read again only where their files have changed."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from coterie.tools.report import reading
from coterie.tools.report.record import RunSummary, find_runs, read_summary, under_way

LISTED = (
    "config.yaml",
    "run.json",
    "rounds.jsonl",
    "clients.json",
    "status.json",
)  # what a line of the list is made of
DRAWN = (
    *LISTED,
    "trace.jsonl",
    "newcomers.json",
    "sketch.safetensors",
    "privacy.json",
    "attack.json",
)  # and what figures are
Signature = tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True)
class Line:
    """A run in the list. Its key is its path below the directory, and the only name a browser may call it by."""

    key: str
    summary: RunSummary
    started: str | None


@dataclass(frozen=True)
class Listing:
    """All runs, and a fingerprint that differs when any line of them does."""

    lines: Mapping[str, Line]
    print: str


def signature(path: Path, names: tuple[str, ...]) -> Signature:
    """When files last changed and their sizes; None for one that is not there."""
    found: list[tuple[int, int] | None] = []
    for name in names:
        try:
            about = os.stat(path / name)  # noqa: PTH116 - thrice as fast, and there are many
            found.append((about.st_mtime_ns, about.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


class RunList:
    """Looks at the directory when asked; safe to be asked by several threads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[Path, tuple[Signature, Line]] = {}
        self._lock = threading.Lock()

    def look(self) -> Listing:
        """The runs as they are now."""
        with self._lock:
            known: dict[Path, tuple[Signature, Line]] = {}
            for path in find_runs(self.directory):
                now, before = signature(path, LISTED), self._known.get(path)
                known[path] = before if before is not None and before[0] == now else (now, self._read(path))
            self._known = known
            lines = [_aged(line) for _, line in known.values()]
        return Listing({line.key: line for line in lines}, fingerprint([line_row(line) for line in lines]))

    def _read(self, path: Path) -> Line:
        about = reading.mapping(reading.read_json(path / "run.json").value)
        return Line(_key(path, self.directory), read_summary(path), reading.text(about.get("started")))


def _key(path: Path, directory: Path) -> str:
    """A name of bytes that are no text is spelt out, so that it can stand in an address."""
    return os.fsencode(path.relative_to(directory).as_posix()).decode("utf-8", "backslashreplace")


def _aged(line: Line) -> Line:
    """Nothing changes in the files of a run that was killed: its lock tells, or else the clock."""
    summary = line.summary
    if summary.status != "running":
        return line
    status, why = under_way(summary.path)
    return line if status == "running" else replace(line, summary=replace(summary, status=status, problem=why))


def line_row(line: Line) -> dict[str, Any]:
    """The line as JSON, for the table in the browser."""
    s = line.summary
    return {
        "key": line.key,
        "method": s.method,
        "data": s.data,
        "seed": s.seed,
        "done": s.rounds_done,
        "wanted": s.rounds_wanted,
        "status": s.status,
        "problem": s.problem,
        "accuracy": s.accuracy,
        "macro_f1": s.macro_f1,
        "loss": s.loss,
        "clusters": s.clusters,
        "ari": s.ari,
        "worst_decile": s.worst_decile,
        "scored_on": s.scored_on,
        "started": line.started,
    }


def fingerprint(value: object) -> str:
    """The same for the same value, of whatever `repr` tells apart."""
    return blake2b(repr(value).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
