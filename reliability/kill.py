"""kill -9 at random instants: `python reliability/kill.py --times 200 --engine batched`.

A run is killed, resumed, perhaps killed again while it resumes, until it is through; then its bits are compared.
--victim worker kills one of the worker processes instead, as the system does when memory is short. --drift kills runs
whose clients move between clusters meanwhile.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from trial import (
    DRIFTING,
    ENGINES,
    WORDS,
    Row,
    clear,
    command_line,
    differences,
    finish,
    fork,
    go,
    left_alone,
    saved_round,
    workshop,
)

MOST = 4  # kills of one run, which is then left to end
PAUSE = 0.0005  # seconds between two looks at the clock


def killed_once(
    path: Path, engine: str, after: float, victim: str, report: Path, settings: Sequence[str] = WORDS
) -> bool:
    """Let the run go on for so many seconds; returns whether it was killed, and not through before."""
    child = fork(lambda: go(path, engine, settings=settings), report)
    until = time.monotonic() + after
    while time.monotonic() < until and not child.poll():
        time.sleep(PAUSE)
    killed = not child.poll()
    if killed and victim == "worker":
        killed = _kill_a_worker(child.pid)
    elif killed:
        child.signal(signal.SIGKILL)
    ended = child.wait()
    if ended.code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"exit code {ended.code}: {ended.said}")
    return killed


def _kill_a_worker(parent: int) -> bool:
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
    except (OSError, IndexError):
        return False
    return True


def trial(engine: str, times: int, victim: str, seed: int, drift: bool = False) -> Row:
    """So many kills."""
    settings = DRIFTING if drift else WORDS
    draw = random.Random(f"{seed} {engine} {victim}")
    kills = runs = lost = wrong = 0
    remarks = []
    with workshop() as place:
        whole = left_alone(place, engine, settings)
        began = time.monotonic()
        go_through = fork(lambda: go(place / "timed", engine, settings=settings), place / "report")
        go_through.wait()
        length = time.monotonic() - began
        while kills < times:
            path = place / f"run-{runs}"
            runs += 1
            through, mine = False, 0
            while not through:
                before = saved_round(path)
                after = draw.random() * length if mine < MOST else 3600.0
                try:
                    was_killed = killed_once(path, engine, after, victim, place / "report", settings)
                except RuntimeError as error:
                    wrong += 1
                    remarks.append(str(error)[-300:])
                    break
                kills += was_killed
                mine += was_killed
                lost += saved_round(path) < before
                through = victim == "worker" or not was_killed
            else:
                found = differences(path, whole)
                wrong += bool(found)
                remarks += [f"run {runs}: {found}"] if found else []
            clear(path)
    who, when = "a worker" if victim == "worker" else "the run", "random instants" + " of a drift" * drift
    name = f"kill -9 of {who} at {when}, {engine}"
    remark = f"{runs} runs; " + "; ".join(remarks) if remarks else f"{runs} runs"
    return Row(name, command_line(), kills, kills - lost - wrong, lost, wrong, remark)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--engine", choices=ENGINES, default="sequential")
    parser.add_argument("--victim", choices=("run", "worker"), default="run")
    parser.add_argument("--drift", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    row = trial(asked.engine, asked.times, asked.victim, asked.seed, asked.drift)
    row.write(f"kill-{asked.engine}" + ("-worker" if asked.victim == "worker" else "") + "-drift" * asked.drift)
    finish([row])


if __name__ == "__main__":
    main()
