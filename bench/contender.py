"""A contender as the harness sees it: a process that trains one round when told to, its time, CPU time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

PATIENCE = 900.0  # seconds for a start or a round
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Skipped(Exception):  # noqa: N818
    """A contender that cannot run here, and why."""


@dataclass(frozen=True)
class Round:
    """What one round took and gave."""

    seconds: float  # as the contender measured it
    wall: float  # as the harness saw it, message there and back
    cpu: float  # of the contender's whole process tree, in steps of a clock tick
    loss: float | None
    checksum: float


class Contender:
    """A running contender. Its standard error goes to a log; its processes end with it."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self._log = name, log
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.about: dict[str, Any] = {}
        self.peak = 0  # bytes

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _hear(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            self._fail(f"silent for {PATIENCE:.0f} s")
        if not line:
            self._fail("ended")
        heard: dict[str, Any] = json.loads(line)
        if "skipped" in heard:
            raise Skipped(heard["skipped"])
        return heard

    def _fail(self, what: str) -> NoReturn:
        last = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()][-1:]
        raise Skipped(f"{what}: {' '.join(last)[:200]} (see {self._log.name})")

    def ready(self) -> None:
        """Wait until it has loaded everything."""
        self.about = self._hear()

    def round(self) -> Round:
        """One round."""
        assert self.process.stdin is not None
        cpu, began = self._cpu(), time.perf_counter()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("round\n")
            self.process.stdin.flush()
        heard = self._hear()
        wall = time.perf_counter() - began
        return Round(heard["seconds"], wall, self._cpu() - cpu, heard["loss"], heard["checksum"])

    @contextmanager
    def watched(self, every: float = 0.2) -> Iterator[None]:
        """Look at its memory all the while. Not to be used around a round whose time counts."""
        stop = threading.Event()

        def look() -> None:
            while not stop.is_set():
                self.peak = max(self.peak, memory(descendants(self.process.pid)))
                stop.wait(every)

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()

    def close(self) -> None:
        """End it and every process it started."""
        family = {pid: _started(pid) for pid in descendants(self.process.pid)}
        with contextlib.suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.write("quit\n")
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=20)
        for pid, started in family.items():
            if started is not None and _started(pid) == started:  # the same process still, not one that got its number
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._listener.join(timeout=20)  # to the end of what was said
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _cpu(self) -> float:
        return sum(_cpu(pid) for pid in descendants(self.process.pid))


def descendants(pid: int) -> list[int]:
    """A process and all that came of it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            parents[int(entry.name)] = int(stat[1])
    found, fresh = [pid], {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh}
        found.extend(sorted(fresh))
    return found


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started(pid: int) -> str | None:
    stat = _stat(pid)
    return stat[19] if stat and stat[0] != "Z" else None


def _cpu(pid: int) -> float:
    stat = _stat(pid)
    return (int(stat[11]) + int(stat[12])) / TICKS if stat else 0.0


def memory(pids: list[int]) -> int:
    """Bytes a process tree holds, as if it were alone on the machine.

    Anonymous and shared memory by proportional set size (processes of one tree share it with each other only). Mapped
    files (libraries, data) once per file, by the process that has most of it: their proportional size would depend on
    how many other contenders happen to run.
    """
    own, files = 0, dict[str, int]()
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps").read_text()
        except OSError:
            continue
        mapped: dict[str, int] = {}
        file, sizes = "", dict[str, int]()
        for line in [*text.splitlines(), "0-0 end"]:
            key, _, rest = line.partition(":")
            if "-" in key.partition(" ")[0]:  # the head of the next mapping
                if file:
                    mapped[file] = mapped.get(file, 0) + max(sizes.get("Rss", 0) - sizes.get("Anonymous", 0), 0)
                    own += sizes.get("Anonymous", 0)
                else:
                    own += sizes.get("Pss", 0)
                name = line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) > 5 else ""
                shared = name.startswith(("/memfd:", "/dev/shm", "/SYSV", "["))
                file, sizes = ("" if shared or not name.startswith("/") else name), {}
            elif key in ("Rss", "Pss", "Anonymous"):
                sizes[key] = int(rest.split()[0]) * 1024
        for name, size in mapped.items():
            files[name] = max(files.get(name, 0), size)
    return own + sum(files.values())
