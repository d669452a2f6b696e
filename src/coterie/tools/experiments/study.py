"""A search for good hyper-parameters: every trial is a run in a directory of its own, Optuna chooses the next one.

The study is one SQLite file, OUT/study.db: a transaction is there or it is not, whenever the process is killed (a
journal file can be left with half a line), and tools that know Optuna open it as it is. Every trial draws from a
sampler seeded by its number, so a study that was interrupted goes on to the same trials as one that was not. Of
several at a time, that depends on which ends first.

Trials are scored on validation samples. The test samples are looked at once, after the search, for the best.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import processes
from coterie.core.errors import CoterieError
from coterie.core.metrics import Summary
from coterie.tools.experiments.search_space import Task, about, changed, check, draw
from coterie.tools.experiments.trial import NAME, Trial, Watch, command, end, needed, perform, pruner, quiet, storage
from coterie.training.execute import execute


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
        def looked(now: processes.Look[Drawn]) -> None:
            for drawn, why in now.ended:
                [frozen] = [t for t in self._study.trials if t.number == drawn.number]
                if frozen.state.is_finished() and why is not None:  # it says that there is no use in going on
                    raise CoterieError(why, code="sweep-metric-missing")
                if not frozen.state.is_finished():  # its process could not say how it ended
                    what = (why or "ended without a word").partition(";")[0]
                    end(self._study, drawn.number, None, what, needed().trial.TrialState.FAIL)
                tell(next(t for t in self.trials() if t.number == drawn.number))
            look(tuple(drawn.number for drawn in now.at))

        processes.carry_out(
            self._drawn(trials, at_once=True),
            lambda drawn: processes.start(drawn, command(self.task, self.out, drawn.number), jobs),
            *(jobs, looked),
        )

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
