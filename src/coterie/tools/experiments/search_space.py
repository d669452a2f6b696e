"""What a search is about: keys of the configuration, what each may be, and what is best."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coterie.core.errors import CoterieError
from coterie.core.registry import Consent
from coterie.tools.experiments.grid import flat, knows, names_first
from coterie.training.build import build_method, resolved
from coterie.training.config import RunConfig, read

VALIDATION = 0.2  # share of each client's training samples that trials are scored on
Metric = Literal["accuracy", "macro_f1", "loss", "ari"]


@dataclass(frozen=True)
class Range:
    """All numbers between two, both included; whole ones where both ends are."""

    low: float
    high: float
    log: bool
    whole: bool


@dataclass(frozen=True)
class Choice:
    """One of some values, as they were written."""

    values: tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """A key of the configuration, and what it may be."""

    key: str
    over: Range | Choice


@dataclass(frozen=True)
class Task:
    """What a study is about: a configuration, what varies in it, and what is best."""

    file: Path | None
    words: tuple[str, ...]
    axes: tuple[Axis, ...]
    metric: Metric
    prune: bool = False
    trusted: tuple[str, ...] = ()  # code of the user's own that the file names

    @property
    def searched(self) -> tuple[str, ...]:
        """The words of all trials: without validation samples of its own choice, a fifth of the training samples."""
        share = self.read(self.words).validation
        return self.words if share else (*self.words, f"validation={VALIDATION}")

    def read(self, words: Sequence[str]) -> RunConfig:
        """The configuration, changed by these words."""
        return read(self.file, words, consent=Consent(frozenset(self.trusted)))

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Which way is better."""
        return "minimize" if self.metric == "loss" else "maximize"


class _Corner:
    """Draws the first value of everything, then the second and so on: every choice, and both ends of a range."""

    def __init__(self, at: int) -> None:
        self.at = at

    def suggest_categorical(self, _: str, values: Sequence[str]) -> str:
        return values[min(self.at, len(values) - 1)]

    def suggest_float(self, _: str, low: float, high: float, log: bool) -> float:
        return high if self.at else low

    suggest_int = suggest_float


def check(task: Task) -> None:
    """Every key is one of the configuration's and no value is hopeless: told before the first trial."""
    if not task.axes:
        raise CoterieError("sweep: over what? For example --over 'local.lr=0.001..1 log'", code="option-missing")
    keys = [axis.key for axis in task.axes]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise CoterieError(f"--over: {twice[0]} is given twice", code="option-conflict")
    drawn: dict[str, str] = {}
    for at in range(max([2, *(len(axis.over.values) for axis in task.axes if isinstance(axis.over, Choice))])):
        words = draw(task, _Corner(at))
        drawn |= {word.partition("=")[0]: word for word in words}
        _validate(task, words)
    for axis in task.axes:
        if axis.key not in drawn:  # nothing that may be drawn has it: refused as `coterie run` does
            _validate(task, [f"{axis.key}=0"])


def _validate(task: Task, words: Sequence[str]) -> None:
    config = task.read([*task.words, *words])
    resolved(config, build_method(config))


def draw(task: Task, suggest: Any) -> tuple[str, ...]:
    """One point of the space, as words; `suggest` is Optuna's trial. A key that the drawn method lacks is left out."""
    base, words = task.read(task.words), []
    names: dict[str, str] = {}
    for axis in sorted(task.axes, key=lambda axis: names_first(axis.key)):
        if knows(axis.key, names, base) is False:
            continue
        over = axis.over
        if isinstance(over, Choice):
            value = suggest.suggest_categorical(axis.key, list(over.values))
            names |= {axis.key: value} if axis.key.endswith(".name") else {}
        elif over.whole:
            value = suggest.suggest_int(axis.key, int(over.low), int(over.high), log=over.log)
        else:
            value = suggest.suggest_float(axis.key, over.low, over.high, log=over.log)
        words.append(f"{axis.key}={value if isinstance(over, Choice) else _text(over, value)}")
    return tuple(words)


def _text(over: Range, value: float) -> str:
    return str(int(value)) if over.whole else repr(float(value))


def about(task: Task) -> dict[str, Any]:
    """What must agree for a study to be of this task."""
    config = task.read(task.searched).dump()
    del config["checkpoint_every"]
    axes = {axis.key: dataclasses.asdict(axis.over) for axis in task.axes}
    return {"metric": task.metric, "over": axes, "config": config, "scored_on": "validation"}


def changed(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The keys that differ, in words."""
    changed = [key for key in ("metric", "over", "scored_on") if there.get(key) != here[key]]
    one, other = dict(flat(there.get("config", {}))), dict(flat(here["config"]))
    changed += [key for key in other | one if one.get(key) != other.get(key)]
    return f"differing in {', '.join(changed[:5])}"
