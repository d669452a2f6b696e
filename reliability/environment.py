"""The machine does not play along: `python reliability/environment.py full`, `read-only`, `two`, `memory`, `signals`.

full: a disk of n kilobytes, for growing n, until the run fits (root: it mounts a file system in memory). read-only: a
directory that cannot be written, and one that can no longer be. two: two processes begin or resume the same run at the
same time. memory: an allocation fails, in the run or in its workers. signals: SIGTERM and SIGINT at random
instants; exit code 143 or 130, the last round saved.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trial import (
    CLEAR,
    ENGINES,
    WORDS,
    Ended,
    Row,
    clear,
    command_line,
    differences,
    finish,
    fork,
    go,
    left_alone,
    resumed_from,
    saved_round,
    workshop,
)

from coterie.core.processes import exit_code, interruptible
from coterie.training.config import read
from coterie.training.execute import execute
from coterie.training.status import read as read_status

Judged = tuple[int, int, list[str]]  # tried, rounds lost, what is wrong


def full_disk(place: Path, whole: Path, step: int) -> Judged:
    """One clear error; and with more room the run goes on to the same bits."""
    tried, lost, wrong, kilobytes, through = 0, 0, list[str](), 16, False
    while not through:
        with mounted(place / "disk", kilobytes) as disk:
            ended = fork(lambda disk=disk: go(disk / "run"), place / "report").wait()  # type: ignore[misc]
            saved, through = saved_round(disk / "run"), ended.code == 0
            enlarge(disk)
            again, done = (ended, saved) if through else resumed_from(disk / "run", "sequential", place / "report")
            found = differences(disk / "run", whole) if not again.code else [again.said[-200:]]
            tried += 1
            lost += done < saved
            bad = ended.code not in (0, CLEAR)
            wrong += [f"{kilobytes} kB: {ended.said[-200:]} {found}"] if bad or found else []
        kilobytes += step
    return tried, lost, wrong


@contextmanager
def mounted(place: Path, kilobytes: int) -> Iterator[Path]:
    """A disk of this size."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def enlarge(place: Path) -> None:
    """Room for everything."""
    subprocess.run(["mount", "-o", "remount,size=100m", str(place)], check=True)


def read_only(place: Path, whole: Path) -> Judged:
    """A file system that cannot be written from the start, or from a moment on (root may write to any directory)."""
    wrong = []
    with mounted(place / "disk", 100_000) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        ended = fork(lambda: go(disk / "run"), place / "report").wait()
        wrong += [] if ended.code == CLEAR else [f"from the start: {ended.said[-200:]}"]
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        ended = fork(lambda: go(disk / "run", rounds=4), place / "report").wait()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        ended = fork(lambda: go(disk / "run"), place / "report").wait()
        wrong += [] if ended.code == CLEAR else [f"resumed: {ended.said[-200:]}"]
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        again, _ = resumed_from(disk / "run", "sequential", place / "report")
        found = differences(disk / "run", whole) if not again.code else [again.said[-200:]]
        wrong += [f"afterwards: {found}"] if found else []
    return 3, 0, wrong


def two_processes(place: Path, whole: Path, times: int, draw: random.Random) -> Judged:
    """One of them does it, the other is told so; or both, one after the other."""
    wrong = []
    for number in range(times):
        path = place / f"both-{number}"
        first = fork(lambda path=path: go(path), place / "one")  # type: ignore[misc]
        time.sleep(draw.random() * 0.4)
        second = fork(lambda path=path: go(path), place / "other")  # type: ignore[misc]
        ended = [first.wait(), second.wait()]
        told = [e for e in ended if e.code == CLEAR]
        known = all("another process" in e.said or "exists already" in e.said for e in told)
        if any(e.code not in (0, CLEAR) for e in ended) or len(told) > 1 or not known or differences(path, whole):
            wrong.append(f"{number}: {[(e.code, e.said[-200:]) for e in ended]}")
        clear(path)
    return times, 0, wrong


def worker_memory(place: Path, times: int, draw: random.Random) -> Judged:
    """One of Python's allocations fails: one clear error, the same bits, or a client is left out and named.

    In half of the cases it fails in the workers, too, which inherit the counter.
    """
    import _testcapi  # type: ignore[import-not-found]  # of CPython itself

    whole, wrong = {name: left_alone(place, name) for name in ("sequential", "workers")}, list[str]()
    for number in range(times):
        path, engine = place / f"short-{number}", draw.choice(("sequential", "workers"))
        first = int(10 ** draw.uniform(2, 6))

        def work(path: Path = path, engine: str = engine, first: int = first) -> None:
            _testcapi.set_nomemory(first, first + 1)
            go(path, engine)

        ended = fork(work, place / "report").wait()
        if ended.code > 0 and ended.code != CLEAR:
            wrong.append(f"allocation {first}, {engine}: {ended.said.strip().splitlines()[-1:]}")
            continue
        again = ended if not ended.code else resumed_from(path, engine, place / "report")[0]
        found = differences(path, whole[engine]) if not again.code else [again.said[-200:]]
        named = not again.code and "MemoryError" in (path / "rounds.jsonl").read_text()
        wrong += [f"allocation {first}, {engine}: {found}"] if found and not named else []
        clear(path)
    return times, 0, wrong


def signals(place: Path, engine: str, times: int, draw: random.Random) -> Judged:
    """The round is finished and saved, the directory says that the run was stopped, and it goes on to the same bits."""
    whole, lost, wrong = left_alone(place, engine), 0, list[str]()
    began = time.monotonic()
    fork(lambda: go(place / "timed", engine), place / "report").wait()
    length = time.monotonic() - began
    for number in range(times):
        path, which = place / f"signalled-{number}", draw.choice((signal.SIGTERM, signal.SIGINT))
        child = fork(lambda path=path: _as_the_command(path, engine), place / "report")  # type: ignore[misc]
        time.sleep(draw.random() * length)
        if not child.poll():
            child.signal(which)
        ended = child.wait()
        lines = (path / "rounds.jsonl").read_text().count("\n") if (path / "rounds.jsonl").exists() else 0
        lost += lines > saved_round(path)
        wrong += _complaints(path, ended, which, number)
        if ended.code:
            again, _ = resumed_from(path, engine, place / "report")
            found = differences(path, whole) if not again.code else [again.said[-200:]]
            wrong += [f"{number}: {found}"] if found else []
        clear(path)
    return times, lost, wrong


def _as_the_command(path: Path, engine: str) -> None:
    words = [*WORDS, "rounds=6", f"engine.name={engine}", *([] if engine == "sequential" else ["engine.workers=2"])]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interruptible(lambda: None) as interruption:
            execute(read(None, words), path, interruption=interruption)
    except KeyboardInterrupt as why:
        os._exit(exit_code(why))


def _complaints(path: Path, ended: Ended, which: int, number: int) -> list[str]:
    begun = (path / "status.json").exists()
    state = read_status(path)
    if ended.code == 0:
        return [] if state is not None and state.state == "done" else [f"{number}: done, but says {state}"]
    # Before the handler is there, a signal ends a process as it always does.
    expected = (128 + which,) if begun else (128 + which, -which)
    wrong = [] if ended.code in expected else [f"{number}: exit code {ended.code} {ended.said[-200:]}"]
    said = "stopped" if state is None else state.state  # done: it came when all was written
    return wrong + ([f"{number}: says {state}"] if begun and said not in ("stopped", "done") else [])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kind", choices=("full", "read-only", "two", "memory", "signals"))
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--step", type=int, default=4, help="of full: kilobytes between two disks")
    parser.add_argument("--engine", choices=ENGINES, default="sequential", help="of signals")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw, kind = random.Random(asked.seed), asked.kind
    with workshop() as place:
        if kind == "full":
            judged = full_disk(place, left_alone(place, "sequential"), asked.step)
        elif kind == "read-only":
            judged = read_only(place, left_alone(place, "sequential"))
        elif kind == "two":
            judged = two_processes(place, left_alone(place, "sequential"), asked.times, draw)
        elif kind == "memory":
            judged = worker_memory(place, asked.times, draw)
        else:
            judged = signals(place, asked.engine, asked.times, draw)
    names = {
        "full": "a full disk, of every size",
        "read-only": "a read-only file system",
        "two": "two processes on one directory",
        "memory": "out of memory at a random allocation, sequential and workers",
        "signals": f"SIGTERM or SIGINT at random instants, {asked.engine}",
    }
    tried, lost, wrong = judged
    row = Row(names[kind], command_line(), tried, tried - len(wrong), lost, len(wrong), "; ".join(wrong[:5]))
    row.write(f"{kind}-{asked.engine}" if kind == "signals" else kind)
    finish([row])


if __name__ == "__main__":
    main()
