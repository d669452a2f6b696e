"""Runs of a campaign, a few at a time, each a process with one thread: a kill costs no more than a checkpoint's age."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from coterie.reproduce.cell import Run, Tree
from coterie.reproduce.results import Results, Sources
from coterie.reproduce.work import ATTENDED, running

PAUSE = 0.5  # seconds between two looks


@dataclass(frozen=True)
class Job:
    """A run with a seed that is not in the results yet."""

    run: Run
    seed: int


@dataclass
class UnderWay:
    """A job that a process is at."""

    job: Job
    process: subprocess.Popen[bytes]
    complaints: IO[bytes]

    def close(self) -> None:
        """Let go of its files."""
        self.complaints.close()
        if self.process.stdin is not None:
            self.process.stdin.close()


@dataclass(frozen=True)
class Progress:
    """How far a campaign is."""

    done: int
    total: int
    at: tuple[tuple[Job, int, int], ...]  # what is under way: rounds done, rounds in all


@dataclass(frozen=True)
class Failed:
    """A job that ended with an error."""

    job: Job
    why: str


def missing(runs: Sequence[Run], seeds: Sequence[int], results: Results) -> list[Job]:
    """What is still to do, seed by seed, so that every run has one before any has two."""
    return [Job(run, seed) for seed in seeds for run in runs if results.load(run, seed) is None]


def campaign(
    jobs: Sequence[Job],
    results: Results,
    data: Sources,
    *,
    at_once: int,
    tell: Callable[[Progress], None] = lambda _: None,
) -> list[Failed]:
    """Carry all of them out; one that fails does not stop the others."""
    waiting, under_way, failed, done = list(jobs), list[UnderWay](), list[Failed](), 0
    try:
        while waiting or under_way:
            while waiting and len(under_way) < at_once:
                under_way.append(_begin(waiting.pop(0), results, data))
            time.sleep(PAUSE)
            for one in [u for u in under_way if u.process.poll() is not None]:
                under_way.remove(one)
                done += 1
                one.complaints.seek(0)
                why = one.complaints.read().decode(errors="replace").strip().splitlines()
                one.close()
                if one.process.returncode:
                    failed.append(Failed(one.job, why[-1] if why else f"exit code {one.process.returncode}"))
            tell(Progress(done, len(jobs), tuple((u.job, *_rounds(u.job, results)) for u in under_way)))
    finally:
        for one in under_way:  # interrupted: what they have done so far is on disk
            one.process.terminate()
            one.process.wait()
            one.close()
    return failed


def _begin(job: Job, results: Results, data: Sources) -> UnderWay:
    import tempfile

    words = [sys.executable, "-m", "coterie.reproduce.work", job.run.name, str(job.seed), str(results.root)]
    words += [_word(name, source) for name, source in data.items()] + [ATTENDED]
    complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process is done
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        words, env=os.environ | one_thread, stdin=subprocess.PIPE, stdout=complaints, stderr=complaints
    )
    return UnderWay(job, process, complaints)


def _word(name: str, source: Tree) -> str:
    more = [f"{key}={value}" for key, value in source.items() if key not in ("name", "path")]
    return ",".join([f"{name}={source['path']}", *more])


def _rounds(job: Job, results: Results) -> tuple[int, int]:
    log = running(results.root, job.run, job.seed) / "rounds.jsonl"
    done = log.read_bytes().count(b"\n") if log.is_file() else 0
    return done, int(job.run.config["rounds"])
