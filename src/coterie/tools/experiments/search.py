"""A search for good hyper-parameters: every trial is a run in a directory of its own, Optuna chooses the next one.

The study is one SQLite file, OUT/study.db: a transaction is there or it is not, whenever the process is killed (a
journal file can be left with half a line), and tools that know Optuna open it as it is. Every trial draws from a
sampler seeded by its number, so an interrupted study continues with the same trials as one that was not interrupted.
With several at a time, that depends on which ends first.

Trials are scored on validation samples. The test samples are looked at once, after the search, for the best.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from coterie.core.errors import CoterieError, StoppedError
from coterie.core.metrics import Summary
from coterie.core.registry import Consent
from coterie.tools.experiments import runner
from coterie.tools.experiments.grid import flat, knows, names_first
from coterie.tools.experiments.runner import Request
from coterie.training.build import build_method, resolved
from coterie.training.config import RunConfig, read
from coterie.training.events import Event, Listener, RoundDone
from coterie.training.execute import execute

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


NAME = "coterie"  # of the study
PATIENCE = 5  # so many trials must have ended, and the round be so late, before one is pruned

Watch: TypeAlias = Callable[[int], AbstractContextManager[Listener]]


@dataclass(frozen=True)
class Trial:
    """A trial that has ended."""

    number: int
    state: Literal["complete", "pruned", "fail"]
    value: float | None  # of the metric, where it was complete
    words: tuple[str, ...]  # what it changed in the configuration
    why: str | None  # it failed, or was pruned
    seconds: float
    code: str | None = None  # of the error, where it failed with one of the library's own


class PrunedError(StoppedError):
    """A trial that is worse than others were after as many rounds."""


class NoSuchMetricError(CoterieError):
    """No run of the study has what is searched for: there is no use in going on."""

    code = "sweep-metric-missing"


def directory(out: Path, number: int) -> Path:
    """A trial's run."""
    return out / f"trial-{number:04d}"


def perform(
    study: Any, task: Task, out: Path, number: int, words: Sequence[str] | None, drawn: Any, watch: Watch
) -> Trial:
    """Carry a trial out, or go on with it, and tell the study. `drawn`: Optuna's trial, where it may be pruned."""
    states, path = needed().trial.TrialState, directory(out, number)
    value, why, code, state, began = None, None, None, states.COMPLETE, time.perf_counter()
    try:
        if words is None:
            raise CoterieError("interrupted before it was drawn", code="sweep-interrupted")
        config = task.read([*task.searched, *words])
        with watch(number) as listen:
            listeners = [listen, _reporter(task.metric, drawn)]
            begun = (path / "config.yaml").is_file()
            result = execute(config, path, resume=begun, listeners=listeners, final_split="val")
        value = measured(result.summary, task.metric)
    except PrunedError as error:
        why, state = str(error), states.PRUNED
    except Exception as error:  # whatever a configuration that was drawn brings about
        why, state = str(error) or type(error).__name__, states.FAIL
        code = error.code if isinstance(error, CoterieError) else None
        if isinstance(error, NoSuchMetricError):
            end(study, number, None, why, state, code)
            raise
    end(study, number, value, why, state, code)
    return Trial(number, state.name.lower(), value, tuple(words or ()), why, time.perf_counter() - began, code)


def end(study: Any, number: int, value: float | None, why: str | None, state: Any, code: str | None = None) -> None:
    """Tell the study how a trial ended."""
    with quiet():
        if why is not None:  # Optuna finishes a trial by its number, but annotates only the study
            study.set_user_attr(f"why-{number}", why)
        if code is not None:
            study.set_user_attr(f"code-{number}", code)
        study.tell(number, value, state=state)


def measured(summary: Summary, metric: Metric) -> float:
    """The number that is searched for."""
    value: float | None = getattr(summary, metric)
    if value is None:
        others = ", ".join(name for name in get_args(Metric) if getattr(summary, name) is not None)
        raise NoSuchMetricError(f"--metric {metric}: this run has none; it has {others}")
    if not math.isfinite(value):
        raise CoterieError(f"{metric} is not a number: the run has diverged", code="diverged")
    return value


def _reporter(metric: Metric, drawn: Any) -> Listener:
    def report(event: Event) -> None:
        if not isinstance(event, RoundDone) or event.validation is None:
            return
        value = measured(event.validation, metric)
        if drawn is not None:
            with quiet():
                drawn.report(value, event.round)
                hopeless = drawn.should_prune()
            if hopeless:
                raise PrunedError(f"worse than half of the others after {event.round} rounds")

    return report


# ------------------------------------------------------------------------------------------------- a process of its own


def request(task: Task, out: Path, number: int) -> Request:
    """What `runner` is asked for: a trial that the study has drawn."""
    what = dataclasses.asdict(dataclasses.replace(task, axes=()))
    return {"kind": "trial", "out": str(out), "number": number, "task": what | {"file": task.file and str(task.file)}}


def in_process(out: str, number: int, task: dict[str, Any]) -> None:
    """The other end of it. The study learns how the trial ended, well or not; an error: no other would be better."""
    file = None if task["file"] is None else Path(task["file"])
    asked, place = (
        Task(file, tuple(task["words"]), (), task["metric"], task["prune"], tuple(task["trusted"])),
        Path(out),
    )
    optuna = needed()
    with quiet():
        study = optuna.load_study(study_name=NAME, storage=storage(place), pruner=pruner(asked))
        [frozen] = [t for t in study.trials if t.number == number]
        drawn = optuna.trial.Trial(study, frozen._trial_id) if asked.prune else None
    words = frozen.user_attrs.get("words")
    perform(study, asked, place, number, words, drawn, lambda _: nullcontext(lambda _: None))


def storage(out: Path) -> str:
    """Where the study is."""
    return f"sqlite:///{(out / 'study.db').resolve()}"


def pruner(task: Task) -> Any:
    """What stops trials."""
    pruners = needed().pruners
    return pruners.MedianPruner(PATIENCE, PATIENCE) if task.prune else pruners.NopPruner()


def needed() -> Any:
    """Optuna."""
    try:
        import optuna
    except ImportError:
        raise CoterieError("coterie sweep needs optuna: pip install 'coterie[sweep]'", code="extra-missing") from None
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


@dataclass(frozen=True, eq=False)
class Drawn:
    """A trial that is to be carried out: one drawn just now, or interrupted."""

    number: int
    words: tuple[str, ...] | None  # None: it was interrupted before it was drawn
    trial: Any  # Optuna's, where it was drawn just now


@dataclass(frozen=True)
class Winner:
    """The run of the best configuration: the only one whose test samples were looked at."""

    path: Path
    summary: Summary


class Study:
    """An Optuna study of a task, in a directory; made there, or gone on with."""

    def __init__(self, task: Task, out: Path) -> None:
        optuna = needed()
        check(task)
        self.task, self.out = task, out
        asked = json.dumps(about(task), sort_keys=True)
        out.mkdir(parents=True, exist_ok=True)
        with quiet():
            self._study = optuna.create_study(
                storage=storage(out),
                study_name=NAME,
                direction=task.direction,
                pruner=pruner(task),
                load_if_exists=True,
            )
            there = self._study.user_attrs.get("about", asked)
            if there != asked:
                what = changed(json.loads(there), json.loads(asked))
                raise CoterieError(
                    f"{out}: holds a study of something else ({what}); choose another --out", code="run-mismatch"
                )
            self._study.set_user_attr("about", asked)

    def run(
        self,
        trials: int,
        watch: Watch,
        tell: Callable[[Trial], None],
        jobs: int = 1,
        look: Callable[[tuple[int, ...]], None] = lambda _: None,
    ) -> None:
        """Go on until there are so many trials.

        One at a time here, where `watch(number)` gives a listener for a trial while it lasts; or several, each in a
        process of its own, where `look` is told every moment which are under way.
        """
        from filelock import FileLock, Timeout

        try:
            with FileLock(self.out / ".lock", timeout=0):
                if jobs > 1:
                    self._several(trials, tell, jobs, look)
                    return
                for drawn in self._drawn(trials):
                    where = drawn.trial if self.task.prune else None
                    tell(perform(self._study, self.task, self.out, drawn.number, drawn.words, where, watch))
        except Timeout:
            raise CoterieError(f"{self.out}: another sweep is at work there", code="run-locked") from None

    def _drawn(self, trials: int, at_once: bool = False) -> Iterator[Drawn]:
        """Those that were interrupted, then new ones, each drawn when it is asked for."""
        for old in self._study.get_trials(states=(needed().trial.TrialState.RUNNING,)):
            words = old.user_attrs.get("words")
            yield Drawn(old.number, None if words is None else tuple(words), None)
        while (number := len(self._study.trials)) < trials:
            with quiet():
                # Of those under way it is supposed that they end badly, so that another corner is tried.
                self._study.sampler = needed().samplers.TPESampler(seed=_seed(number), constant_liar=at_once)
                trial = self._study.ask()
                words = draw(self.task, trial)
                trial.set_user_attr("words", list(words))
            yield Drawn(number, words, trial)

    def _several(
        self, trials: int, tell: Callable[[Trial], None], jobs: int, look: Callable[[tuple[int, ...]], None]
    ) -> None:
        def looked(now: runner.Look[Drawn]) -> None:
            for drawn, why in now.ended:
                [frozen] = [t for t in self._study.trials if t.number == drawn.number]
                if frozen.state.is_finished() and why is not None:  # it says that there is no use in going on
                    raise CoterieError(why, code="sweep-metric-missing")
                if not frozen.state.is_finished():  # its process could not say how it ended
                    what = (why or "ended without a word").partition(";")[0]
                    end(self._study, drawn.number, None, what, needed().trial.TrialState.FAIL)
                tell(next(t for t in self.trials() if t.number == drawn.number))
            look(tuple(drawn.number for drawn in now.at))

        drawn = self._drawn(trials, at_once=True)
        runner.carry_out(drawn, lambda one: request(self.task, self.out, one.number), jobs, looked)

    def trials(self) -> list[Trial]:
        """All that have ended: the best first, then those without a value."""
        found = [
            Trial(
                *(t.number, t.state.name.lower(), t.value if t.state.name == "COMPLETE" else None),
                *(tuple(t.user_attrs.get("words", ())), self._study.user_attrs.get(f"why-{t.number}")),
                t.duration.total_seconds() if t.duration else 0.0,
                self._study.user_attrs.get(f"code-{t.number}"),
            )
            for t in self._study.trials
            if t.state.is_finished()
        ]
        sign = 1 if self.task.direction == "minimize" else -1
        return sorted(found, key=lambda t: (t.value is None, sign * (t.value or 0.0), t.number))

    def winner(self, best: Trial, watch: Watch) -> Winner:
        """The best configuration trained once more as `coterie run` does it, and scored on the test samples."""
        path = self.out / f"best-{best.number:04d}"
        config = self.task.read([*self.task.words, *best.words])
        with watch(best.number) as listen:
            result = execute(config, path, resume=(path / "config.yaml").is_file(), listeners=[listen])
        return Winner(path, result.summary)

    def importance(self) -> dict[str, float]:
        """How much each key matters to the metric, as shares of 1, the most important first."""
        if sum(trial.value is not None for trial in self.trials()) < 2:
            raise CoterieError("importance needs two trials that ended", code="sweep-importance")
        with quiet():
            try:
                found = dict(needed().importance.get_param_importances(self._study))
            except (ValueError, RuntimeError) as error:  # no key that all trials share, or all of one value
                raise CoterieError(f"importance cannot be told: {error}", code="sweep-importance") from None
        if not found:
            raise CoterieError("importance cannot be told: no key was drawn in all trials", code="sweep-importance")
        return found


def _seed(number: int) -> int:
    """Seeds that follow each other give first draws that are too much alike."""
    return int(np.random.SeedSequence([number]).generate_state(1)[0])
