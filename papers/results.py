"""The stored outcomes: results/NAME.jsonl, a line per run and seed, rewritten atomically when a run is done."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock

from coterie.core.errors import CoterieError
from coterie.core.files import write_durably, writing
from coterie.core.version import versions
from coterie.training.build import build_method, resolved
from coterie.training.config import RunConfig, read
from coterie.training.events import RoundDone
from papers.cell import Cell, Found, Outcome, Run, Table, Tree, pooled

Sources: TypeAlias = Mapping[str, Tree]  # what is read instead of a data set that cannot be fetched, by its name
COLUMNS = ("loss", "accuracy", "macro_f1", "clusters", "sizes", "ari", "nmi", "mixture_error", "r2")  # of a Summary
OWN_FILES = ("medmnist",)  # data sets whose files are read by their own readers, wherever they lie
DIGITS = 6  # significant, in what is kept
# What an outcome does not depend on, but for its seed: how fast it was computed.
SPEED = ("seed", "engine", "checkpoint_every", "keep_checkpoints", "device", "compile", "deterministic")


def configured(run: Run, seed: int, data: Sources | None = None) -> RunConfig:
    """The run's configuration, validated; a data set that cannot be fetched may be read from a file instead."""
    tree = dict(run.config) | {"seed": seed}
    source = (data or {}).get(tree["data"]["name"])
    if source is not None and tree["data"]["name"] in OWN_FILES:
        tree["data"] = tree["data"] | {"path": source["path"]}
    elif source is not None:
        spread = {k: v for k, v in tree["data"].items() if k in ("partition", "drift")}
        tree["data"] = {"standardise": False, "standardise_y": False} | dict(source) | spread  # as the set is
    return read(None, base=RunConfig().dump() | tree)


def fingerprint(run: Run) -> str:
    """Of what a table says of a run. What it leaves to defaults is compared by `changed`, option by option."""
    declared = {key: value for key, value in run.config.items() if key not in SPEED}
    return hashlib.sha256(json.dumps([declared, run.probe], sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Meant:
    """What a run is today: every option spelled out, and the revision of its method and of those that it wraps."""

    fingerprint: str
    config: Tree
    revision: list[int]

    @staticmethod
    def by(run: Run) -> Meant:
        """Of a run."""
        config = configured(run, 0)
        method = build_method(config)
        tree = {key: value for key, value in resolved(config, method).items() if key not in SPEED}
        return Meant(fingerprint(run), json.loads(json.dumps(tree)), _revisions(method))


def _revisions(method: Any) -> list[int]:
    """A method's revision, then that of the method it wraps."""
    base = getattr(method, "base", None)
    return [getattr(method, "revision", 0), *([] if base is None else _revisions(base))]


def changed(kept: Tree, today: Tree, prefix: str = "") -> list[str]:
    """Options that both configurations have, with different values.

    One that only today's has is newer than the outcome, and a default that changes nothing: it would have raised the
    method's revision otherwise. One that only the outcome has is gone.
    """
    found = []
    for key in kept.keys() & today.keys():
        mine, theirs = kept[key], today[key]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += changed(mine, theirs, f"{prefix}{key}.")
        elif mine != theirs:
            found.append(f"{prefix}{key}")
    return sorted(found)


class Results:
    """The outcomes below a directory. A file has those of all runs whose names begin with its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._meant: dict[int, tuple[Run, Meant]] = {}  # by id: a run has a dict in it and no hash
        self._read: dict[Path, tuple[tuple[int, int], dict[str, dict[int, Outcome]]]] = {}  # by size and time

    def meant(self, run: Run) -> Meant:
        """What a run is today, worked out once: it takes as long as validating a configuration does."""
        if id(run) not in self._meant:
            self._meant[id(run)] = (run, Meant.by(run))
        return self._meant[id(run)][1]

    def place(self, name: str) -> Path:
        """The file of a run."""
        return self.root / f"{name.partition('/')[0]}.jsonl"

    def lines(self, file: Path) -> dict[str, dict[int, Outcome]]:
        """All outcomes of a file, by run and seed."""
        if not file.is_file():
            return {}
        stamp = (file.stat().st_mtime_ns, file.stat().st_size)
        if self._read.get(file, ((), {}))[0] != stamp:
            found: dict[str, dict[int, Outcome]] = {}
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
                try:
                    one = Outcome(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise CoterieError(
                        f"{file}, line {number}: not an outcome ({error}); delete the line and run it again",
                        code="run-damaged",
                    ) from None
                found.setdefault(one.run, {})[one.seed] = one
            self._read[file] = (stamp, found)
        return self._read[file][1]

    def valid(self, outcome: Outcome, run: Run) -> bool:
        """Whether an outcome is of this run's configuration, of whichever revision of its method."""
        meant = self.meant(run)
        return outcome.fingerprint == meant.fingerprint and not changed(dict(outcome.config), meant.config)

    def load(self, run: Run, seed: int) -> Outcome | None:
        """The outcome, unless there is none, or its configuration or its method's revision was another."""
        found = self.lines(self.place(run.name)).get(run.name, {}).get(seed)
        if found is None or not self.valid(found, run) or list(found.revision) != self.meant(run).revision:
            return None
        return found

    def of(self, run: Run) -> list[Outcome]:
        """The outcomes of all seeds. Those of an earlier revision only where there are no others, and never mixed."""
        stored = self.lines(self.place(run.name)).get(run.name, {})
        kept = [one for one in stored.values() if self.valid(one, run)]
        newest = max((list(one.revision) for one in kept), default=[])
        return sorted((one for one in kept if list(one.revision) == newest), key=lambda one: one.seed)

    def earlier(self, run: Run) -> bool:
        """Whether a run's outcomes are of an earlier revision of its method."""
        return any(list(one.revision) != self.meant(run).revision for one in self.of(run))

    def found(self, cell: Cell) -> Found | None:
        """Our number."""
        return pooled(cell, self.of(cell.run), self.earlier(cell.run))

    def save(self, outcome: Outcome) -> Path:
        """Put an outcome into its file, in place of an earlier one of the same run and seed."""
        file = self.place(outcome.run)
        self.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / f".{file.stem}.lock"), writing(file):
            every = {(one.run, one.seed): one for seeds in self.lines(file).values() for one in seeds.values()}
            every[outcome.run, outcome.seed] = outcome
            write_durably(file, "".join(_line(every[key]) for key in sorted(every)))
        return file


def _line(outcome: Outcome) -> str:
    tree = dataclasses.asdict(outcome)
    return json.dumps(_short(tree) | {"config": tree["config"]}, separators=(",", ":")) + "\n"


def outcome_of(
    run: Run, seed: int, history: Sequence[RoundDone], probe: Mapping[str, Any], seconds: float, data_from: str | None
) -> Outcome:
    """Everything worth keeping of a run that is done."""
    seen = [event for event in history if event.summary is not None]
    curve: dict[str, list[Any]] = {"round": [event.round for event in seen]}
    for name in COLUMNS:
        curve[name] = [getattr(event.summary, name) for event in seen]
    for name in ("discrepancy", "clusterability"):
        curve[name] = [getattr(event, name) for event in seen]
    meant = Meant.by(run)
    return Outcome(
        run=run.name,
        seed=seed,
        fingerprint=meant.fingerprint,
        revision=meant.revision,
        config=meant.config | {"engine": configured(run, seed).dump()["engine"]},  # for how long it takes
        command=f"python -m papers --run {run.name} --seed {seed}",
        versions={k: v for k, v in versions().items() if k != "platform"},
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, no GPU, 1 thread",
        finished=time.strftime("%Y-%m-%d", time.gmtime()),
        seconds=seconds,
        data_from=data_from,
        curve={k: v for k, v in curve.items() if any(x is not None for x in v)},
        probe=probe,
    )


def _short(value: Any) -> Any:
    """Numbers to a few digits: what is kept is read by people and drawn, never computed on."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list | tuple) else value


def stale(results: Results, tables: Sequence[Table]) -> list[str]:
    """Outcomes of another configuration, with what has changed, and of runs that no table knows."""
    known = {run.name: run for table in tables for run in table.runs()}
    odd = []
    for file in sorted(results.root.glob("*.jsonl")):
        for name, seeds in results.lines(file).items():
            if name not in known:
                odd.append(f"{file}: no table has a run {name}")
                continue
            for seed, outcome in seeds.items():
                if not results.valid(outcome, known[name]):
                    what = ", ".join(changed(dict(outcome.config), results.meant(known[name]).config))
                    odd.append(f"{file}: {name}, seed {seed}, was run with another {what or 'declaration'}")
    return odd
