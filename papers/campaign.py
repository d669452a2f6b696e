"""Runs of a campaign, a few at a time, each in a process with one thread. A killed one resumes from its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.core import processes
from papers.cell import Run, Tree
from papers.results import Results, Sources
from papers.work import running


@dataclass(frozen=True)
class Job:
    """A run with a seed that is not in the results yet."""

    run: Run
    seed: int


@dataclass(frozen=True)
class Progress:
    """How far a campaign is."""

    done: int
    total: int
    at: tuple[tuple[Job, int, int], ...]  # running jobs: rounds done, rounds in all
    ended: tuple[tuple[Job, str | None], ...]  # since the last call, and why it failed if it did


def missing(runs: Sequence[Run], seeds: Sequence[int], results: Results, *, more: bool = False) -> list[Job]:
    """What is still to do, wave by wave and seed by seed, so that every run of a wave has one before any has two.

    more: also the further seeds of runs that want more than these.
    """
    jobs = [
        Job(run, seed)
        for run in runs
        for seed in (*seeds, *(range(seeds[-1] + 1, seeds[0] + run.seeds) if more else ()))
        if results.load(run, seed) is None
    ]
    return sorted(jobs, key=lambda job: (job.run.wave, job.seed))


BASIS = (
    "Hours rest on the processor time of other seeds where it was kept, else on the table's estimate or the time that "
    "passed, whichever is less. CIFAR-10 and Fashion-MNIST are by compiled code: without a C++ compiler they take "
    "several times as long."
)


@dataclass(frozen=True)
class Plan:
    """What a campaign would take."""

    runs: int
    hours: float  # of one core
    unknown: int  # runs that these hours do not contain


def planned(jobs: Sequence[Job], results: Results) -> Plan:
    """The time of all of them whose time is known or estimated."""
    known = [seconds for job in jobs if (seconds := expected(job.run, results)) is not None]
    return Plan(len(jobs), sum(known) / 3600, len(jobs) - len(known))


def expected(run: Run, results: Results) -> float | None:
    """Seconds of one core that a run takes, by its other seeds and by its table; None where neither says anything.

    Other seeds count if the same engine computed them. Their processor time is best. Outcomes that have only the time
    that passed may be of a busy machine, or older than faster code: then the table's figure counts if it is less.
    """
    before = [outcome for outcome in results.of(run) if _engine(outcome.config) == _engine(run.config)]
    spent = [outcome.processor for outcome in before if outcome.processor is not None]
    if spent:
        return sum(spent) / len(spent)
    passed = [sum(outcome.seconds for outcome in before) / len(before)] if before else []
    return min([*passed, *([] if run.seconds is None else [run.seconds])], default=None)


def _engine(config: Tree) -> str:
    return str(config.get("engine", {"name": "auto"})["name"])


def campaign(
    jobs: Sequence[Job],
    results: Results,
    data: Sources,
    *,
    at_once: int,
    tell: Callable[[Progress], None] = lambda _: None,
) -> list[processes.Failed[Job]]:
    """Carry all of them out; one that fails does not stop the others."""

    def look(so_far: processes.Look[Job]) -> None:
        at = tuple((job, *_rounds(job, results)) for job in so_far.at)
        tell(Progress(so_far.done, len(jobs), at, so_far.ended))

    return processes.carry_out(jobs, lambda job: _begin(job, results, data), at_once, look)


def _begin(job: Job, results: Results, data: Sources) -> processes.UnderWay[Job]:
    words = ["-m", "papers.work", job.run.name, str(job.seed), str(results.root)]
    return processes.start(job, words + [_word(name, source) for name, source in data.items()])


def _word(name: str, source: Tree) -> str:
    more = [f"{key}={value}" for key, value in source.items() if key not in ("name", "path")]
    return ",".join([f"{name}={source['path']}", *more])


def _rounds(job: Job, results: Results) -> tuple[int, int]:
    log = running(results.root, job.run, job.seed) / "rounds.jsonl"
    done = log.read_bytes().count(b"\n") if log.is_file() else 0
    return done, int(job.run.config["rounds"])
