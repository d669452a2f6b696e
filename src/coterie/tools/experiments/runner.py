"""Many runs, a few processes at a time. A process imports the library once and then does one job after another.

The parent writes a request per line to a process's standard input and reads an answer per line. A job that fails is an
answer; a process that dies fails its job alone, and the next job gets a new process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

from coterie.core.errors import CoterieError, of_the_machine
from coterie.core.processes import by_sigterm, end, exit_code, import_from_here_last

Job = TypeVar("Job")
Request: TypeAlias = Mapping[str, Any]  # JSON: `kind` is a key of KINDS, the rest are that function's arguments
PAUSE = 0.2  # seconds between two reports of progress
COMMAND = ["-m", "coterie.tools.experiments.runner"]


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
    ended: tuple[tuple[Job, str | None], ...]  # since the last look, and why it failed if it did


def carry_out(
    jobs: Iterable[Job],
    ask: Callable[[Job], Request],
    at_once: int,
    tell: Callable[[Look[Job]], None] = lambda _: None,
) -> list[Failed[Job]]:
    """Do all jobs; one that fails does not stop the others. The next job is asked for when there is room for it."""
    answers: SimpleQueue[tuple[_Process, str | None]] = SimpleQueue()
    waiting, idle, busy = iter(jobs), list[_Process](), dict[_Process, Job]()
    failed, done = list[Failed[Job]](), 0
    try:
        while True:
            while len(busy) < at_once and (following := next(((job,) for job in waiting), None)) is not None:
                worker = idle.pop() if idle else _Process(answers, at_once)
                busy[worker] = following[0]
                worker.begin(ask(following[0]))
            if not busy:
                return failed
            ended = []
            for worker, line in _arrived(answers):
                if worker not in busy:  # it ended while it had nothing to do
                    idle.remove(worker)
                    worker.close()
                    continue
                job, done = busy.pop(worker), done + 1
                why = worker.why_it_died() if line is None else json.loads(line)["why"]
                if line is None:
                    worker.close()
                else:
                    idle.append(worker)
                failed += [] if why is None else [Failed(job, why)]
                ended.append((job, why))
            tell(Look(done, tuple(busy.values()), tuple(ended)))
    finally:
        for worker in (*busy, *idle):  # interrupted: what they have done so far is on disk
            worker.close()


def _arrived(
    answers: SimpleQueue[tuple[_Process, str | None]],
) -> list[tuple[_Process, str | None]]:
    """What has been answered since the last time, after a pause at most."""
    found = []
    try:
        found.append(answers.get(timeout=PAUSE))
        while True:
            found.append(answers.get_nowait())
    except Empty:
        return found


class _Process:
    """A process with one thread, which shares the cores with `at_once` others, itself included."""

    def __init__(self, answers: SimpleQueue[tuple[_Process, str | None]], at_once: int) -> None:
        from coterie.core.compute import CORES, cores  # which imports torch

        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        share = {CORES: str(max(1, cores() // at_once))}
        self._process = subprocess.Popen(
            [sys.executable, *COMMAND],
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | share,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
        )
        self._answers = answers
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put((self, line.decode()))
        self._answers.put((self, None))

    def begin(self, request: Request) -> None:
        """Hand it a job."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it is dead, which its reader says

    def why_it_died(self) -> str:
        """How it ended, of one that gave no answer."""
        code = self._process.wait()
        if code < 0:
            return f"killed by signal {-code}; run the same command to continue"
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"exit code {code}"

    def close(self) -> None:
        """End it, whatever it is doing, and close its files."""
        end(self._process)
        self._reader.join()
        for file in (self._process.stdin, self._process.stdout, self._complaints):
            if file is not None:
                file.close()


# ------------------------------------------------------------------------------------------------- in the process


def run(path: str, tree: Mapping[str, Any], trust: list[str], beside: str | None) -> None:
    """A run of a configuration in a directory; one that has begun there goes on."""
    from coterie.core.registry import Consent
    from coterie.training.config import read, read_file
    from coterie.training.execute import execute

    place = Path(path)
    begun = (place / "config.yaml").is_file()
    if begun:
        tree = read_file(place / "config.yaml")
    consent = Consent(frozenset(trust), None if beside is None else Path(beside), source=str(place / "config.yaml"))
    execute(read(None, (), base=tree, consent=consent), place, resume=begun)


def trial(**words: Any) -> None:
    """A trial of a search."""
    from coterie.tools.experiments.search import in_process

    in_process(**words)


KINDS: Mapping[str, Callable[..., None]] = {"run": run, "trial": trial}


def work() -> None:
    """The process: requests from standard input, answers to what was standard output, until the parent is gone."""
    import_from_here_last()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process in order
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a user's code prints is no answer
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        try:
            with by_sigterm():
                why = _why_not(KINDS[request.pop("kind")], request)
        except KeyboardInterrupt as interrupted:
            os._exit(exit_code(interrupted))
        answers.write(json.dumps({"why": why}) + "\n")
        answers.flush()
        gc.collect()


def _listen(requests: SimpleQueue[bytes]) -> None:
    with open(0, "rb", closefd=False) as stream:  # not sys.stdin, whose lock the interpreter wants when it ends
        for line in stream:
            requests.put(line)
    os._exit(3)  # the parent is gone, however it ended


def _why_not(job: Callable[..., None], words: Mapping[str, Any]) -> str | None:
    """None where the job was done; else why it was not."""
    try:
        job(**words)
    except CoterieError as error:
        return str(error)
    except Exception as error:
        refused = of_the_machine(error)
        if refused is not None:
            return str(refused)
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = traceback.format_exception_only(error)[-1].strip()
        return f'{said} (File "{last.filename}", line {last.lineno}, in {last.name})'
    return None


if __name__ == "__main__":
    work()
