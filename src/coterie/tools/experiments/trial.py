"""One trial of a search: a run in a directory of its own, and what the study is told of it.

A trial is scored on its clients' validation samples; their test samples are not looked at.

As a process: `python -m coterie.tools.experiments.trial OUT NUMBER TASK`, of which `coterie sweep --jobs`
has several at a time. It ends with 0 once the study knows how the trial ended, well or not; with 2 if no
other trial would be better.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from coterie.core.errors import CoterieError, StoppedError
from coterie.core.metrics import Summary
from coterie.core.processes import end_with_parent, import_from_here_last
from coterie.tools.experiments.search_space import Metric, Task
from coterie.training.events import Event, Listener, RoundDone
from coterie.training.execute import execute

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


def command(task: Task, out: Path, number: int) -> list[str]:
    """What Python is to be started with for a trial that the study has drawn."""
    what = dataclasses.asdict(dataclasses.replace(task, axes=()))
    return [
        "-m",
        "coterie.tools.experiments.trial",
        str(out),
        str(number),
        json.dumps(what | {"file": task.file and str(task.file)}),
    ]


def main() -> None:
    """The entry point of the process."""
    end_with_parent()
    import_from_here_last()
    out, number, what = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    file = what["file"] and Path(what["file"])
    task = Task(file, tuple(what["words"]), (), what["metric"], what["prune"], tuple(what["trusted"]))
    optuna = needed()
    with quiet():
        study = optuna.load_study(study_name=NAME, storage=storage(out), pruner=pruner(task))
        [frozen] = [t for t in study.trials if t.number == number]
        drawn = optuna.trial.Trial(study, frozen._trial_id) if task.prune else None
    try:
        perform(study, task, out, number, frozen.user_attrs.get("words"), drawn, lambda _: nullcontext(lambda _: None))
    except NoSuchMetricError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


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


if __name__ == "__main__":
    main()
