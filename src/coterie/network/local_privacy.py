"""Local differential privacy: a client adds noise of its own before anything leaves it, and trusts nobody.

The guarantee is against the server and everyone else, for any two data sets that this client might have. All models and
sketches of a visit are clipped and get Gaussian noise together; a choice among clusters is a randomised response, made
before training starts from it. How many samples there are is a number that the client makes up; its losses are left
out. What cannot be made private (scores, evaluations, descriptions) is refused. The number of visits is counted here,
on disk, before an answer is sent; after the last one that was planned, the client refuses to answer. An error while it
computes on its data depends on the data, and a server could ask so that it does: nothing of it leaves the client, which
then sends the noise alone.

No message of the server can change any of this: it is a setting of the client's own program.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, Lt
from filelock import FileLock
from pydantic import PositiveFloat, PositiveInt, TypeAdapter, ValidationError
from torch import Tensor

from coterie.client.contract import Answer, FitAnswer, VisitResult
from coterie.client.visit import Resolver
from coterie.core.decoder import DecodeError, parse_json
from coterie.core.errors import CoterieError
from coterie.core.files import write_durably
from coterie.core.references import All, Best, Row, personal_of
from coterie.core.settings import STRICT, dataclass, explain
from coterie.core.tasks import Describe, Evaluate, Fit, Score, Task
from coterie.layers.accountant import (
    Gaussian,
    RandomisedResponse,
    Release,
    SystemRandomness,
    clipped,
    epsilon_of,
    noise_for,
)

FILE = "privacy.json"
REFUSED = {Score: "scores of several models", Evaluate: "an evaluation", Describe: "a description of its data"}
MOST_VISITS = 10_000  # the accounting of more choices takes gigabytes
FOR_CHOICES = 0.5  # of epsilon, and of delta, where the client makes choices


@dataclass(frozen=True, config=STRICT)
class LocalPrivacy:
    """What a client may spend, and on how many visits."""

    epsilon: PositiveFloat
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    visits: Annotated[int, Ge(1), Le(MOST_VISITS)] = 30  # that the budget is for
    clip: PositiveFloat = 1.0  # the largest norm of an update, and of a sketch
    choices: PositiveInt = 1  # the most clusters to choose from (IFCA's k); 1: a choice is refused
    samples: PositiveInt = 1  # what the server is told; it is the client's weight

    @cached_property
    def random(self) -> float:
        """The chance that a choice is drawn uniformly."""
        if self.choices == 1:
            return 1.0

        def releases(noise: float) -> tuple[Release, ...]:
            return (RandomisedResponse(self.choices, -math.expm1(-noise), self.visits),)

        return -math.expm1(-noise_for(self.epsilon * FOR_CHOICES, self.delta * FOR_CHOICES, releases))

    @cached_property
    def noise(self) -> float:
        """The noise multiplier of what a visit sends, in units of what another data set could change."""
        return noise_for(self.epsilon, self.delta, lambda noise: self._spent(noise, self.visits))

    def spent(self, visits: int) -> float:
        """Epsilon after so many visits."""
        return epsilon_of(self._spent(self.noise, visits), self.delta)

    def _spent(self, noise: float, visits: int) -> tuple[Release, ...]:
        return Gaussian(noise, visits), RandomisedResponse(self.choices, self.random, visits)


def read_local_privacy(text: str) -> LocalPrivacy:
    """epsilon=8,delta=1e-5,visits=30,clip=1 as on the command line."""
    tree: dict[str, str] = {}
    for word in text.split(","):
        key, equals, value = word.partition("=")
        if not equals:
            raise CoterieError(
                f"--local-privacy {text}: expected key=value,..., for example epsilon=8,visits=30,clip=1",
                code="option-invalid",
            )
        if key.strip() in tree:  # the last one would win, and spend more than the first one says
            raise CoterieError(f"--local-privacy {text}: {key.strip()} is given twice", code="option-invalid")
        tree[key.strip()] = value.strip()
    try:
        return TypeAdapter(LocalPrivacy).validate_python(tree)
    except ValidationError as error:
        raise explain(error, "--local-privacy", LocalPrivacy) from None


class LocalBudgetSpentError(CoterieError):
    """There is nothing left that could pay for another visit."""

    code = "local-privacy"


class PrivacyGuard:
    """Makes the answers of one client private, and counts its visits in a file that survives it."""

    def __init__(
        self,
        settings: LocalPrivacy,
        place: Path,
        rng: np.random.Generator | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """rng: for tests; otherwise the operating system's randomness, which nobody can foresee. say: to the user."""
        self.settings, self._file, self._say = settings, place / FILE, say
        self._rng = rng or SystemRandomness()
        self.visits = self._read()

    def _read(self) -> int:
        """The visits so far; a file that cannot be read is not taken for an unspent budget."""
        if not self._file.is_file():
            return 0
        try:
            found = parse_json(self._file.read_bytes())
            if dataclasses.asdict(self.settings) != found["settings"]:
                raise CoterieError(
                    f"{self._file}: the budget was begun with other settings; what was spent then cannot be counted "
                    "with these. Use the same, or another --state directory if the two may add up",
                    code="local-privacy",
                )
            return int(found["visits"])
        except (OSError, DecodeError, ValueError, KeyError, TypeError):
            raise CoterieError(
                f"{self._file}: cannot be read, so nobody knows what was spent", code="local-privacy"
            ) from None

    def visit(
        self,
        tasks: Sequence[Task | None],
        resolver: Resolver,
        carry_out: Callable[[Sequence[Task | None]], VisitResult],
    ) -> VisitResult:
        """What the tasks come to, made private. carry_out: computes on the data.

        Whether that went well, the server does not learn: what cannot be computed is an update of nothing.
        """
        prepared = self.prepared(tasks, resolver)
        self.check_budget()  # before anything is computed in vain
        try:
            done = carry_out(prepared)
        except Exception as error:
            self._say(f"the server is sent noise alone, because this failed: {error}")
            keeps = any(isinstance(task, Fit) and _keeps(task) for task in prepared)
            done = VisitResult(tuple(map(_nothing, prepared)), {"nothing": torch.zeros(1)} if keeps else {})
        return dataclasses.replace(done, answers=self.private(prepared, done.answers))

    @property
    def spent(self) -> str | None:
        """That no visit is left, in words; None where there is."""
        many = self.settings.visits
        if self.visits < many:
            return None
        return f"this client's privacy budget is spent: it was for {many} visit{'s' if many != 1 else ''}"

    def check_budget(self) -> None:
        """An error if no visit is left."""
        if self.spent is not None:
            raise LocalBudgetSpentError(self.spent)

    def prepared(self, tasks: Sequence[Task | None], resolver: Resolver) -> tuple[Task | None, ...]:
        """The tasks with choices made: a randomised response in place of the best. Others are checked."""
        chosen = sum(isinstance(task, Fit) and isinstance(task.start, Best) for task in tasks)
        if chosen > 1:  # each would be a release of its own, and one per visit is accounted for
            raise CoterieError(
                f"this client's local privacy makes one choice in a visit, the server asks for {chosen}",
                code="local-privacy",
            )
        return tuple(None if task is None else self._prepared(task, resolver) for task in tasks)

    def _prepared(self, task: Task, resolver: Resolver) -> Task:
        if isinstance(task, Score | Evaluate | Describe):
            what = REFUSED[type(task)]
            raise CoterieError(
                f"this client's local privacy refuses {what}: its numbers cannot be made private", code="local-privacy"
            )
        assert isinstance(task, Fit)
        if not isinstance(task.start, All | Row | Best):
            raise CoterieError(
                f"this client's local privacy refuses to train from {type(task.start).__name__}: what it sends could "
                "not be clipped",
                code="local-privacy",
            )
        return self._chosen(task, task.start, resolver) if isinstance(task.start, Best) else task

    def _chosen(self, task: Fit, start: Best, resolver: Resolver) -> Fit:
        options = len(start.centers)
        if options > self.settings.choices:
            raise CoterieError(
                f"this client's local privacy allows a choice of {self.settings.choices} models, the server asks for "
                f"one of {options} (--local-privacy choices={options})",
                code="local-privacy",
            )
        try:
            best = resolver.resolve(start)[1]
        except Exception as error:  # it depends on the data, so it must not show
            self._say(f"no model could be chosen: {error}")
            best = 0
        assert best is not None
        row = int(self._rng.integers(options)) if self._rng.random() < self.settings.random else best
        return dataclasses.replace(task, start=Row(start.centers[row], row, start.personal))

    def private(self, tasks: Sequence[Task | None], answers: Sequence[Answer | None]) -> tuple[Answer | None, ...]:
        """The answers as they may leave the client. The visit is counted first, on disk."""
        self._count()
        fits = [answer for answer in answers if isinstance(answer, FitAnswer)]
        together = sum((one.theta is not None) + (one.sketch is not None) for one in fits)
        deviation = 2 * self.settings.clip * math.sqrt(together) * self.settings.noise
        return tuple(
            self._answer(task, answer, deviation) if isinstance(task, Fit) and isinstance(answer, FitAnswer) else None
            for task, answer in zip(tasks, answers, strict=True)
        )

    def _count(self) -> None:
        """One more visit. Another process with the same directory may have counted some in the meantime."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._file.with_suffix(".lock")):
            self.visits = max(self.visits, self._read())
            self.check_budget()
            self.visits += 1
            found = {"settings": dataclasses.asdict(self.settings), "visits": self.visits}
            found |= {"noise": self.settings.noise, "random": self.settings.random}
            found["epsilon"] = self.settings.spent(self.visits)
            write_durably(self._file, json.dumps(found, indent=1) + "\n")

    def _answer(self, task: Fit, answer: FitAnswer, deviation: float) -> FitAnswer:
        assert isinstance(task.start, All | Row)
        start, theta, sketch = task.start.theta, answer.theta, answer.sketch
        return dataclasses.replace(
            answer,
            n=self.settings.samples,
            loss=0.0,
            theta=None if theta is None else start + self._noisy(theta - start, deviation),
            sketch=None if sketch is None else self._noisy(sketch, deviation),
        )

    def _noisy(self, vector: Tensor, deviation: float) -> Tensor:
        drawn = torch.from_numpy(self._rng.standard_normal(len(vector))) * deviation
        return (clipped(vector[None], self.settings.clip)[0] + drawn).to(vector.dtype)


def _keeps(task: Fit) -> bool:
    """Whether a client that trains so keeps something of it."""
    return task.save is not None or task.keeps_optimizer or (personal_of(task.start) is not None and task.keep)


def _nothing(task: Task | None) -> FitAnswer | None:
    """The answer of a client that has not moved from where it started."""
    if not isinstance(task, Fit):
        return None
    assert isinstance(task.start, All | Row)
    start = task.start.theta
    sketch = None if task.sketch is None else torch.zeros(task.sketch, dtype=start.dtype)
    row = task.start.row if isinstance(task.start, Row) else None
    return FitAnswer(0, 0.0, start.clone() if task.send else None, row, sketch)
