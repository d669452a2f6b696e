"""What the tests of single methods share: an `ask` that follows a script, and short ways to write answers down."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from coterie.byclient import ByClient
from coterie.model import Model
from coterie.tasks import All, Best, Cohort, Fit, Fitted, Local, Pick, Ref, Reply, Roster, Score, Scored, Task

LOCAL = Local(steps=7, lr=0.25)
TWO = Model(lambda: nn.Linear(2, 1, bias=False))  # a model is two numbers
FOUR = Model(lambda: nn.Linear(2, 2, bias=False))  # or four

Answer: TypeAlias = Reply | list[Reply] | Callable[[Any], Reply | list[Reply]]


class ScriptedAsk:
    """Answers from its script, in order: a reply, or a function that looks at what is asked and gives one."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[Any] = []
        self._left = list(answers)

    def __call__(self, task: Any, /) -> Any:
        self.asked.append(task)
        assert self._left, f"question {len(self.asked)} is one too many: {task}"
        answer = self._left.pop(0)
        return answer(task) if callable(answer) else answer

    @property
    def done(self) -> bool:
        """Whether the whole script was played."""
        return not self._left


class Imagined:
    """Clients that move every model by their own step: answers any Fit of the ids it is asked for, or of a cohort."""

    def __init__(
        self,
        step: Callable[[int, Tensor], Sequence[float]],
        cohort: Cohort,
        missing: Sequence[int] = (),
        losses: Mapping[int, Sequence[float]] | None = None,
    ) -> None:
        self.step, self.cohort, self.missing, self.losses = step, cohort, missing, losses or {}
        self.visits: list[list[Task]] = []

    def __call__(self, task: Any, /) -> Any:
        single = isinstance(task, Fit | Score)
        tasks: list[Task] = [task] if single else list(task)
        self.visits.append(tasks)
        replies = [self.answer(t) for t in tasks]
        return replies[0] if single else replies

    def answer(self, task: Task) -> Reply:
        ids = [i for i in (self.cohort.ids if task.on is None else task.on).tolist() if i not in self.missing]
        n = size(self.cohort.roster, ids)
        if isinstance(task, Score):
            rows = torch.tensor([list(self.losses[i]) for i in ids]).reshape(len(ids), len(task.centers))
            return Scored(torch.tensor(ids, dtype=torch.int64), n, rows)
        assert isinstance(task, Fit)
        models: dict[int, list[float]] = {}
        choice: list[int] = []
        for i in ids:
            start, row = self.resolve(task.start, i)
            models[i] = (start + torch.tensor(list(self.step(i, start)))).tolist()
            choice += [] if row is None else [row]
        return fitted(models, n.tolist(), choice or None)

    def resolve(self, ref: Ref, client: int) -> tuple[Tensor, int | None]:
        match ref:
            case All(theta):
                return theta, None
            case Pick(centers, labels):
                row = int(labels.at(torch.tensor([client]))[0])
                return centers[row], row
            case Best(centers):
                row = int(np.argmin(self.losses[client]))
                return centers[row], row
        raise AssertionError(f"not imagined: {ref}")


def size(roster: Roster, ids: Sequence[int]) -> Tensor:
    """The sizes of these clients."""
    return ByClient(roster.ids, roster.n).at(torch.tensor(list(ids), dtype=torch.int64))


def make_roster(sizes: Mapping[int, int]) -> Roster:
    """Everyone, with the size of their data."""
    return Roster(torch.tensor(list(sizes)), torch.tensor(list(sizes.values())))


def make_cohort(ids: Sequence[int], roster: Roster, round: int = 0, seed: int = 0) -> Cohort:
    """Those taking part."""
    return Cohort(torch.tensor(list(ids), dtype=torch.int64), round, roster, np.random.default_rng(seed))


def fitted(
    models: Mapping[int, Sequence[float]], n: Sequence[int] | None = None, choice: Sequence[int] | None = None
) -> Fitted:
    """The answers of these clients to a Fit; ten samples each where nothing is said."""
    rows = torch.tensor([list(m) for m in models.values()], dtype=torch.float32) if models else None
    return Fitted(
        torch.tensor(list(models), dtype=torch.int64),
        torch.tensor(list(n) if n is not None else [10] * len(models), dtype=torch.int64),
        torch.zeros(len(models)),
        rows,
        torch.tensor(list(choice)) if choice is not None and models else None,
    )


NOBODY = fitted({})


def kept(*ids: int) -> Fitted:
    """Answers to a Fit with send=False: who, and no models."""
    return Fitted(torch.tensor(ids), torch.full((len(ids),), 10), torch.zeros(len(ids)))


def scored(rows: Mapping[int, Sequence[float]], k: int = 2) -> Scored:
    """The answers of these clients to a Score."""
    scores = torch.tensor([list(r) for r in rows.values()], dtype=torch.float32).reshape(len(rows), -1 if rows else k)
    ids = torch.tensor(list(rows), dtype=torch.int64)
    return Scored(ids, torch.full((len(rows),), 10), scores)


def by_client(table: Mapping[int, int]) -> ByClient:
    """Labels by client."""
    return ByClient(torch.tensor(list(table), dtype=torch.int64), torch.tensor(list(table.values()), dtype=torch.int64))


def table(labels: ByClient) -> dict[int, int]:
    """Labels by client, as a dict."""
    return dict(zip(labels.ids.tolist(), labels.values.tolist(), strict=True))


def on(task: Task) -> list[int] | None:
    """Whom a task is for; None is the whole cohort."""
    return None if task.on is None else task.on.tolist()


def a_fit(task: object) -> Fit:
    """The task, which is a Fit."""
    assert isinstance(task, Fit)
    return task


def all_of(ref: Ref | None) -> list[float]:
    """The vector of an All."""
    assert isinstance(ref, All)
    return ref.theta.tolist()


def pick_of(ref: Ref | None) -> Pick:
    """The reference, which is a Pick."""
    assert isinstance(ref, Pick)
    return ref


def starts(ref: Ref | None, *ids: int) -> list[list[float]]:
    """The vectors that a Pick means for these clients."""
    pick = pick_of(ref)
    return pick.centers[pick.labels.at(torch.tensor(ids))].tolist()


def close(actual: Tensor, expected: Any, within: float = 1e-6) -> None:
    """Equal, up to rounding."""
    want = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, want, rtol=0, atol=within)


def assert_same(one: Any, other: Any) -> None:
    """Two states are equal, number by number."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    else:
        assert one == other
