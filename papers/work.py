"""One run of a campaign, in a process of its own: `python -m papers.work RUN SEED RESULTS [NAME=FILE ...]`.

If it was killed, it resumes from its last checkpoint. It leaves nothing behind but the outcome.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from coterie.core.allocation import keep_memory
from coterie.core.errors import CoterieError, ResumeError
from coterie.core.processes import end_with_parent
from coterie.training.build import build
from coterie.training.execute import execute
from coterie.training.run_directory import read_history
from papers.cell import Run
from papers.probes import look
from papers.results import Results, Sources, configured, outcome_of
from papers.tables import TABLES


def running(results: Path, run: Run, seed: int) -> Path:
    """The directory for the log and the checkpoints of a run in progress."""
    return results / ".running" / run.name.replace("/", "--") / f"seed-{seed}"


def carry_out(run: Run, seed: int, results: Results, data: Sources) -> Path:
    """Run it (or resume it), measure it, and write the outcome."""
    place = running(results.root, run, seed)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(place.with_suffix(".lock"), blocking=False):
            saved = _carry_out(run, seed, results, data, place)
            place.with_suffix(".lock").unlink(missing_ok=True)
    except Timeout:
        raise CoterieError("another process is at it already", code="run-locked") from None
    for above in (place.parent, place.parent.parent):  # unless another run is in progress there
        with contextlib.suppress(OSError):
            above.rmdir()
    return saved


def _carry_out(run: Run, seed: int, results: Results, data: Sources, place: Path) -> Path:
    config = configured(run, seed, data)
    begun, before = (place / "config.yaml").is_file(), _processor()
    job = build(config)  # first: an error in the data must not discard earlier work
    try:
        result = execute(config, place, resume=begun, components=job)
    except ResumeError:  # it was begun by another version: start again
        shutil.rmtree(place)
        result = execute(config, place, components=job)
    history = read_history(place, config.rounds)
    seconds = sum(event.seconds for event in history)
    source = data.get(run.config["data"]["name"])
    file = None if source is None else Path(source["path"]).name
    outcome = outcome_of(run, seed, history, look(run.probe, result, config), seconds, file)
    if not begun:  # of a resumed run, earlier processes have spent a part
        outcome = dataclasses.replace(outcome, processor=_processor() - before)
    saved = results.save(outcome)
    shutil.rmtree(place)
    return saved


def _processor() -> float:
    """Seconds of processor time of this process and of those it has started and waited for."""
    return sum(os.times()[:4])


def find(name: str) -> Run:
    """A run by its name."""
    runs = {run.name: run for table in TABLES for run in table.runs()}
    if name not in runs:
        from coterie.core.errors import suggest

        raise CoterieError(f"no run '{name}'.{suggest(name, list(runs))}", code="reproduce-unknown")
    return runs[name]


def sources(words: Sequence[str]) -> Sources:
    """`NAME=FILE.npz[,key=value ...]`: the data set NAME is read from a file of one's own."""
    found = {}
    for word in words:
        name, equals, rest = word.partition("=")
        path, *more = rest.split(",")
        if not equals or not Path(path).is_file() or any("=" not in pair for pair in more):
            raise CoterieError(
                f"--data '{word}': expected NAME=FILE.npz with a file that is there, and its parameters after commas, "
                "for example uci-har=har.npz,client=subject",
                code="option-invalid",
            )
        found[name] = {"name": "npz", "path": path} | dict(pair.split("=", 1) for pair in more)
    return found


def main() -> None:
    """The entry point of the process."""
    end_with_parent()
    name, seed, results, *data = sys.argv[1:]
    keep_memory()
    try:
        carry_out(find(name), int(seed), Results(Path(results)), sources(data))
    except CoterieError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
