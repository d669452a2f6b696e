"""An `ask` that follows a script, and short ways to write replies: a method's numbers can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import Described, Fitted, Reply, Scored

Answer: TypeAlias = Reply | Sequence[Reply] | Callable[[Any], Reply | Sequence[Reply]]


class ScriptedAsk:
    """Answers from its script, in order: a reply, or a function of the task that returns one.

    `asked` has what the method asked so far.
    """

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[Any] = []
        self._left = list(answers)

    def __call__(self, task: Any, /) -> Any:
        self.asked.append(task)
        assert self._left, f"asked {len(self.asked)} times, more often than the script has replies: {task}"
        answer = self._left.pop(0)
        return answer(task) if callable(answer) else answer

    @property
    def done(self) -> bool:
        """Whether every reply of the script was used."""
        return not self._left


def make_roster(sizes: Mapping[int, int]) -> Roster:
    """Everyone: the number of training samples by client id, ascending."""
    return Roster(torch.tensor(list(sizes)), torch.tensor(list(sizes.values())))


def make_cohort(ids: Sequence[int], roster: Roster, round: int = 0, seed: int = 0) -> Cohort:
    """Those that take part in a round; rounds count from 0."""
    return Cohort(torch.tensor(list(ids), dtype=torch.int64), round, roster, np.random.default_rng(seed))


def fitted(
    models: Mapping[int, Sequence[float]], n: Sequence[int] | None = None, choice: Sequence[int] | None = None
) -> Fitted:
    """A reply to a `Fit`: the model of each client that answers. Ten samples each unless `n` says otherwise."""
    rows = torch.tensor([list(m) for m in models.values()], dtype=torch.float32) if models else None
    return Fitted(
        torch.tensor(list(models), dtype=torch.int64),
        torch.tensor(list(n) if n is not None else [10] * len(models), dtype=torch.int64),
        torch.zeros(len(models)),
        rows,
        torch.tensor(list(choice)) if choice is not None and models else None,
    )


def scored(rows: Mapping[int, Sequence[float]], k: int = 2) -> Scored:
    """A reply to a `Score` of k centers: the row of each client that answers, with ten samples each."""
    scores = torch.tensor([list(r) for r in rows.values()], dtype=torch.float32).reshape(len(rows), -1 if rows else k)
    return Scored(torch.tensor(list(rows), dtype=torch.int64), torch.full((len(rows),), 10), scores)


def described(rows: Mapping[int, Sequence[float]]) -> Described:
    """A reply to a `Describe`: the row of each client that answers, with ten samples each."""
    ids = torch.tensor(list(rows), dtype=torch.int64)
    return Described(ids, torch.full((len(rows),), 10), torch.tensor([list(r) for r in rows.values()]).float())
