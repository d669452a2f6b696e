"""Processes that are started and end in order: SIGTERM is as Ctrl-C, and what was started ends with its parent.

Where a command was started in the background, by `nohup` or by many a CI runner, Ctrl-C's signal is ignored.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import IO, Generic, TypeVar

GRACE = 5.0  # seconds a process has to end by itself


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def exit_code(why: KeyboardInterrupt) -> int:
    """As in a shell: 128 plus the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(why, Terminated) else signal.SIGINT)


@contextmanager
def by_sigterm() -> Iterator[None]:
    """While this lasts, SIGTERM is as Ctrl-C, so that everything is closed in order; a second one ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return

    def end(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interruption:
    """A wish to stop that may come while something is under way that should be finished first, such as a round."""

    def __init__(self) -> None:
        self._why: KeyboardInterrupt | None = None
        self._held = False

    @property
    def came(self) -> bool:
        """Whether somebody wants it to stop."""
        return self._why is not None

    @property
    def wish(self) -> KeyboardInterrupt | None:
        """The wish that waits, if one does."""
        return self._why

    def heed(self) -> None:
        """Raise the wish that waits, if one does: for a place that may otherwise wait for ever, and loses nothing."""
        if self._why is not None:
            raise self._why

    def hear(self, why: KeyboardInterrupt) -> bool:
        """Note the first wish while it is held; every other one is raised. Returns True if it was noted."""
        if not self._held or self.came:
            raise why
        self._why = why
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """While this lasts, the first wish waits; it is raised at the end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._why is not None:
            raise self._why


@contextmanager
def interruptible(tell: Callable[[], None]) -> Iterator[Interruption]:
    """While this lasts, Ctrl-C and SIGTERM wait for what holds them; a second one ends at once. tell: one waits."""
    found = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield found  # only the main thread hears signals
        return

    def hear(number: int, _: FrameType | None) -> None:
        if found.hear(Terminated() if number == signal.SIGTERM else KeyboardInterrupt()):
            tell()

    heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, hear) for number in heard}
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end(process: subprocess.Popen[bytes], grace: float = GRACE) -> None:
    """Ask a process to end; one that does not is killed."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


Job = TypeVar("Job")
PAUSE = 0.2  # seconds between two checks
ATTENDED = "COTERIE_ATTENDED"  # in a process's environment: its parent holds the other end of its standard input


@dataclass
class UnderWay(Generic[Job]):
    """A job that is running in a process."""

    job: Job
    process: subprocess.Popen[bytes]
    complaints: IO[bytes]

    def close(self) -> None:
        """Close its files."""
        self.complaints.close()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def why(self) -> str | None:
        """Why the process failed, from the end of its standard error."""
        self.complaints.seek(0)
        said = self.complaints.read().decode(errors="replace").strip().splitlines()
        code = self.process.returncode
        if not code:
            return None
        if code < 0:
            return f"killed by signal {-code}; run the same command to continue"
        if not said:
            return f"exit code {code}"
        foreseen = [i for i, line in enumerate(said) if line.startswith("error: ")]
        if foreseen:
            return " ".join(said[foreseen[-1] :]).removeprefix("error: ")
        where = [line.strip() for line in said if line.startswith('  File "')]  # of an unexpected error
        return said[-1] + (f" ({where[-1]})" if where else "")


@dataclass(frozen=True)
class Failed(Generic[Job]):
    """A job that ended with an error."""

    job: Job
    why: str


@dataclass(frozen=True)
class Look(Generic[Job]):
    """The state of all jobs."""

    done: int
    at: tuple[Job, ...]  # running
    ended: tuple[tuple[Job, str | None], ...]  # since the last call, and why it failed if it did


def start(job: Job, command: Sequence[str], at_once: int = 1) -> UnderWay[Job]:
    """Start a process with one thread; its output is read only if it fails. It shares the cores with `at_once`
    others, itself included: its own workers are as many as its share."""
    from coterie.core.compute import CORES, cores  # which imports torch

    complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process is done
    share = {CORES: str(max(1, cores() // at_once))}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", ATTENDED: "1"} | share
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, stdin=subprocess.PIPE, stdout=complaints, stderr=complaints
    )
    return UnderWay(job, process, complaints)


def carry_out(
    jobs: Iterable[Job],
    begin: Callable[[Job], UnderWay[Job]],
    at_once: int,
    tell: Callable[[Look[Job]], None] = lambda _: None,
) -> list[Failed[Job]]:
    """All of them; one that fails does not stop the others. The next job is asked for when there is room for it."""
    waiting, under_way, failed, done = iter(jobs), list[UnderWay[Job]](), list[Failed[Job]](), 0
    try:
        while True:
            under_way += map(begin, islice(waiting, at_once - len(under_way)))
            if not under_way:
                return failed
            time.sleep(PAUSE)
            ended = []
            for one in [u for u in under_way if u.process.poll() is not None]:
                under_way.remove(one)
                done += 1
                why = one.why()
                one.close()
                failed += [] if why is None else [Failed(one.job, why)]
                ended.append((one.job, why))
            tell(Look(done, tuple(u.job for u in under_way), tuple(ended)))
    finally:
        for one in under_way:  # interrupted: what they have done so far is on disk
            end(one.process)
            one.close()


def import_from_here_last() -> None:
    """Search the working directory for a user's own module (module:Class), but after all installed packages.

    A torch.py or csv.py in that directory must not replace the real one. Python itself puts the directory first for
    `python -m` and for the processes of a pool, which are therefore told not to.
    """
    here = str(Path.cwd())
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):
        del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)
    os.environ["PYTHONSAFEPATH"] = "1"


def end_with_parent(grace: float = 0.0) -> None:
    """Where a pool started this process: stop when that is gone, however it ended. grace: seconds to end in order."""
    if os.environ.pop(ATTENDED, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock the interpreter wants when it ends
            pass
        if grace:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(grace)
        os._exit(3)

    threading.Thread(target=wait, daemon=True).start()
