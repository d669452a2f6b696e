"""A search for good hyper-parameters: every trial is a run in a directory of its own, Optuna chooses the next one.

The study is one SQLite file, OUT/study.db: a transaction is there or it is not, whenever the process is killed (a
journal file can be left with half a line), and tools that know Optuna open it as it is. Every trial draws from a
sampler seeded by its number, so a study that was interrupted goes on to the same trials as one that was not.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from coterie.config import build_method, read, resolved
from coterie.errors import CoterieError
from coterie.events import Event, Listener, RoundDone
from coterie.execute import execute
from coterie.grid import flat, knows, names_first
from coterie.metrics import Summary

Metric = Literal["accuracy", "macro_f1", "loss", "ari"]
PATIENCE = 5  # so many trials must have ended, and the round be so late, before one is pruned


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

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Which way is better."""
        return "minimize" if self.metric == "loss" else "maximize"


@dataclass(frozen=True)
class Trial:
    """A trial that has ended."""

    number: int
    state: Literal["complete", "pruned", "fail"]
    value: float | None  # of the metric, where it was complete
    words: tuple[str, ...]  # what it changed in the configuration
    why: str | None  # it failed, or was pruned
    seconds: float


class PrunedError(Exception):
    """A trial that is worse than others were after as many rounds."""


class NoSuchMetricError(CoterieError):
    """No run of the study has what is searched for: there is no use in going on."""


# ------------------------------------------------------------------------------------------------- the space


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
        raise CoterieError("sweep: over what? For example --over 'local.lr=0.001..1 log'")
    keys = [axis.key for axis in task.axes]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise CoterieError(f"--over: {twice[0]} is given twice")
    drawn: dict[str, str] = {}
    for at in range(max([2, *(len(axis.over.values) for axis in task.axes if isinstance(axis.over, Choice))])):
        words = draw(task, _Corner(at))
        drawn |= {word.partition("=")[0]: word for word in words}
        _validate(task, words)
    for axis in task.axes:
        if axis.key not in drawn:  # nothing that may be drawn has it: refused as `coterie run` does
            _validate(task, [f"{axis.key}=0"])


def _validate(task: Task, words: Sequence[str]) -> None:
    config = read(task.file, [*task.words, *words])
    resolved(config, build_method(config))


def draw(task: Task, suggest: Any) -> tuple[str, ...]:
    """One point of the space, as words; `suggest` is Optuna's trial. A key that the drawn method lacks is left out."""
    base, words = read(task.file, task.words), []
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


# ------------------------------------------------------------------------------------------------- the study


class Study:
    """An Optuna study of a task, in a directory; made there, or gone on with."""

    def __init__(self, task: Task, out: Path) -> None:
        optuna = needed()
        check(task)
        self.task, self.out = task, out
        about = json.dumps(_about(task), sort_keys=True)
        out.mkdir(parents=True, exist_ok=True)
        with quiet():
            pruner = optuna.pruners.MedianPruner(PATIENCE, PATIENCE) if task.prune else optuna.pruners.NopPruner()
            self._study = optuna.create_study(
                storage=f"sqlite:///{(out / 'study.db').resolve()}",
                study_name="coterie",
                direction=task.direction,
                pruner=pruner,
                load_if_exists=True,
            )
            there = self._study.user_attrs.get("about", about)
            if there != about:
                what = _changed(json.loads(there), json.loads(about))
                raise CoterieError(f"{out}: holds a study of something else ({what}); choose another --out")
            self._study.set_user_attr("about", about)

    def run(
        self, trials: int, watch: Callable[[int], AbstractContextManager[Listener]], tell: Callable[[Trial], None]
    ) -> None:
        """Go on until there are so many trials. `watch(number)` gives a listener for a trial while it lasts."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.out / ".lock", timeout=0):
                self._run(trials, watch, tell)
        except Timeout:
            raise CoterieError(f"{self.out}: another sweep is at work there") from None

    def _run(self, trials: int, watch: Any, tell: Any) -> None:
        for trial in self._study.get_trials(states=(needed().trial.TrialState.RUNNING,)):  # interrupted: it goes on
            tell(self._trial(trial.number, trial.user_attrs.get("words"), None, watch))
        while (number := len(self._study.trials)) < trials:
            with quiet():
                self._study.sampler = needed().samplers.TPESampler(seed=_seed(number))
                trial = self._study.ask()
                words = draw(self.task, trial)
                trial.set_user_attr("words", list(words))
            tell(self._trial(number, words, trial if self.task.prune else None, watch))

    def _trial(self, number: int, words: Sequence[str] | None, pruner: Any, watch: Any) -> Trial:
        states, path = needed().trial.TrialState, directory(self.out, number)
        value, why, state, began = None, None, states.COMPLETE, time.perf_counter()
        try:
            if words is None:
                raise CoterieError("interrupted before it was drawn")
            config = read(self.task.file, [*self.task.words, *words])
            with watch(number) as listen:
                listeners = [listen, _reporter(self.task.metric, pruner)]
                result = execute(config, path, resume=(path / "config.yaml").is_file(), listeners=listeners)
            value = measured(result.summary, self.task.metric)
        except PrunedError as error:
            why, state = str(error), states.PRUNED
        except Exception as error:  # whatever a configuration that was drawn brings about
            why, state = str(error) or type(error).__name__, states.FAIL
            if isinstance(error, NoSuchMetricError):
                self._end(number, None, why, state)
                raise
        self._end(number, value, why, state)
        return Trial(number, state.name.lower(), value, tuple(words or ()), why, time.perf_counter() - began)

    def _end(self, number: int, value: float | None, why: str | None, state: Any) -> None:
        with quiet():
            if why is not None:  # Optuna lets a trial be told by its number, but not be annotated
                self._study.set_user_attr(f"why-{number}", why)
            self._study.tell(number, value, state=state)

    def trials(self) -> list[Trial]:
        """All that have ended: the best first, then those without a value."""
        found = [
            Trial(
                *(t.number, t.state.name.lower(), t.value if t.state.name == "COMPLETE" else None),
                *(tuple(t.user_attrs.get("words", ())), self._study.user_attrs.get(f"why-{t.number}")),
                t.duration.total_seconds() if t.duration else 0.0,
            )
            for t in self._study.trials
            if t.state.is_finished()
        ]
        sign = 1 if self.task.direction == "minimize" else -1
        return sorted(found, key=lambda t: (t.value is None, sign * (t.value or 0.0), t.number))

    def importance(self) -> Any:
        """How much each key matters to the metric, as a plotly figure."""
        if sum(trial.value is not None for trial in self.trials()) < 2:
            raise CoterieError("importance needs two trials that ended")
        try:
            import plotly  # noqa: F401
        except ImportError:
            raise CoterieError("pictures need plotly: pip install 'coterie[report]'") from None
        with quiet():
            try:
                return needed().visualization.plot_param_importances(self._study, target_name=self.task.metric)
            except (ValueError, RuntimeError) as error:  # no key that all trials share, or all of one value
                raise CoterieError(f"importance cannot be told: {error}") from None


def _seed(number: int) -> int:
    """Seeds that follow each other give first draws that are too much alike."""
    return int(np.random.SeedSequence([number]).generate_state(1)[0])


def directory(out: Path, number: int) -> Path:
    """A trial's run."""
    return out / f"trial-{number:04d}"


def measured(summary: Summary, metric: Metric) -> float:
    """The number that is searched for."""
    value: float | None = getattr(summary, metric)
    if value is None:
        others = ", ".join(name for name in get_args(Metric) if getattr(summary, name) is not None)
        raise NoSuchMetricError(f"--metric {metric}: this run has none; it has {others}")
    if not math.isfinite(value):
        raise CoterieError(f"{metric} is not a number: the run has diverged")
    return value


def _reporter(metric: Metric, pruner: Any) -> Listener:
    def report(event: Event) -> None:
        if not isinstance(event, RoundDone) or event.summary is None:
            return
        value = measured(event.summary, metric)
        if pruner is not None:
            with quiet():
                pruner.report(value, event.round)
                hopeless = pruner.should_prune()
            if hopeless:
                raise PrunedError(f"worse than half of the others after {event.round} rounds")

    return report


def _about(task: Task) -> dict[str, Any]:
    config = read(task.file, task.words).dump()
    del config["checkpoint_every"]
    axes = {axis.key: dataclasses.asdict(axis.over) for axis in task.axes}
    return {"metric": task.metric, "over": axes, "config": config}


def _changed(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The keys that differ, in words."""
    changed = [key for key in ("metric", "over") if there.get(key) != here[key]]
    one, other = dict(flat(there.get("config", {}))), dict(flat(here["config"]))
    changed += [key for key in other | one if one.get(key) != other.get(key)]
    return f"differing in {', '.join(changed[:5])}"


def needed() -> Any:
    """Optuna."""
    try:
        import optuna
    except ImportError:
        raise CoterieError("coterie sweep needs optuna: pip install 'coterie[sweep]'") from None
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Optuna's log and its warnings about what is experimental are not for the people who sweep."""
    log = needed().logging
    before = log.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.set_verbosity(logging.ERROR)
        try:
            yield
        finally:
            log.set_verbosity(before)
