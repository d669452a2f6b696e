"""The stored outcomes: results/RUN/seed-N.json, written atomically when a run is done."""

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

from coterie.core.earlier_runs import method_of_0_1
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
# Options that are newer than stored outcomes, with the value at which they change nothing.
LATER: Mapping[str, Any] = {
    "standardise": "auto",  # of an npz file: the images of the tables stay as they were
    "standardise_y": "auto",
    "drift": True,  # of Halves
    "size_unit": "samples",
    "update_bound": 10.0,
    "largest": 1 << 30,
    "clip": "auto",
    "validation": 0.0,
    "centers_init": "random",
    "unvoted": "average",
    "sampling": "fixed",
    "trial": True,
    "voting": "logits",
    "decimals": None,
    "init": "torch",
    "styles": None,
    "mix": False,
    "opposed": True,
}
# Options that matter only where not everyone takes part in every round, with their earlier value.
COMING_LATER: Mapping[str, Any] = {"join": "nearest", "clustered": "known"}
# Values that were renamed after outcomes were stored, with the name in the fingerprints of those outcomes.
RENAMED: Mapping[tuple[str, Any], Any] = {("warmup_by", "local_unclustered"): "local"}


def configured(run: Run, seed: int, data: Sources | None = None) -> RunConfig:
    """The run's configuration, validated; a data set that cannot be fetched may be read from a file instead."""
    tree = dict(run.config) | {"seed": seed}
    source = (data or {}).get(tree["data"]["name"])
    if source is not None and tree["data"]["name"] in OWN_FILES:
        tree["data"] = tree["data"] | {"path": source["path"]}
    elif source is not None:
        spread = {k: v for k, v in tree["data"].items() if k in ("partition", "drift")}
        tree["data"] = dict(source) | spread
    return read(None, base=RunConfig().dump() | tree)


def fingerprint(run: Run) -> str:
    """What the outcome depends on: every parameter spelled out, but not the seed, nor how fast it was computed."""
    config = configured(run, 0)
    method = build_method(config)
    tree = resolved(config, method)
    for key in ("seed", "engine", "checkpoint_every", "keep_checkpoints", "device", "compile", "deterministic"):
        tree.pop(key, None)
    if tree.get("precision") == "float32":  # as it always was
        del tree["precision"]
    everyone = tree["participation"] == 1.0 and not tree["dropout"] and not tree["newcomers"]
    idle = frozenset(COMING_LATER) if everyone else frozenset()
    tree["method"] = method_of_0_1(tree["method"])
    mended = _revisions(method)
    text = json.dumps([_without_later(tree, idle), run.probe, *(mended if any(mended) else ())], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _revisions(method: Any) -> list[int]:
    """A method's revision, then that of the method it wraps. All zero leaves the fingerprint as it always was."""
    base = getattr(method, "base", None)
    return [getattr(method, "revision", 0), *([] if base is None else _revisions(base))]


def _without_later(tree: Any, idle: frozenset[str] = frozenset()) -> Any:
    """A configuration in the words of earlier versions; `idle` are options without effect in this run."""
    if not isinstance(tree, dict):
        return tree
    before = {**LATER, **COMING_LATER}
    return {
        key: RENAMED[key, value] if isinstance(value, str) and (key, value) in RENAMED else _without_later(value, idle)
        for key, value in tree.items()
        if key not in idle and (key not in before or before[key] != value)
    }


class Results:
    """The outcomes below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fingerprints: dict[int, tuple[Run, str]] = {}  # by id: a run has a dict in it and no hash

    def _fingerprint(self, run: Run) -> str:
        """Each run's once: it takes as long as validating a configuration does."""
        if id(run) not in self._fingerprints:
            self._fingerprints[id(run)] = (run, fingerprint(run))
        return self._fingerprints[id(run)][1]

    def place(self, run: Run, seed: int) -> Path:
        """The path of an outcome."""
        return self.root / run.name / f"seed-{seed}.json"

    def load(self, run: Run, seed: int) -> Outcome | None:
        """The outcome, unless there is none or its configuration was another."""
        place = self.place(run, seed)
        if not place.is_file():
            return None
        try:
            found = Outcome(**json.loads(place.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise CoterieError(
                f"{place}: not an outcome ({error}); delete it and run it again", code="run-damaged"
            ) from None
        return found if found.fingerprint == self._fingerprint(run) else None

    def of(self, run: Run) -> list[Outcome]:
        """The outcomes of all seeds."""
        seeds = sorted(int(p.stem.removeprefix("seed-")) for p in (self.root / run.name).glob("seed-*.json"))
        found = (self.load(run, seed) for seed in seeds)
        return [outcome for outcome in found if outcome is not None]

    def found(self, cell: Cell) -> Found | None:
        """Our number."""
        return pooled(cell, self.of(cell.run))

    def save(self, outcome: Outcome, run: Run) -> Path:
        """Write an outcome atomically."""
        place = self.place(run, outcome.seed)
        text = json.dumps(_short(dataclasses.asdict(outcome)), separators=(",", ":"))
        with writing(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_durably(place, text + "\n")
        return place


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
    config: Tree = configured(run, seed).dump()
    return Outcome(
        run=run.name,
        seed=seed,
        fingerprint=fingerprint(run),
        config=config,
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


def stale(results: Results, tables: Sequence[Table]) -> list[Path]:
    """Outcomes of an older configuration, and of runs that no table knows."""
    known = {run.name: run for table in tables for run in table.runs()}
    odd = []
    for place in sorted(results.root.rglob("seed-*.json")):
        name = place.parent.relative_to(results.root).as_posix()
        seed = int(place.stem.removeprefix("seed-"))
        if name not in known or results.load(known[name], seed) is None:
            odd.append(place)
    return odd
