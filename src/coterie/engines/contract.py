"""What every engine is: it takes a visit to the clients and brings back what they answered.

An engine knows nothing of methods. A client that fails, drops out or answers with NaN is not an
error: it is missing from the replies and named, with the reason, in the outcome.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from coterie.byclient import ByClient
from coterie.client import Answer, EvaluateAnswer, FitAnswer, Moment, ScoreAnswer
from coterie.errors import CoterieError
from coterie.memory import Memory
from coterie.tasks import Evaluate, Evaluated, Fit, Fitted, Reply, Score, Scored, Task


@dataclass(frozen=True, eq=False)
class Visit:
    """One trip: these tasks, in this order, to these clients (a task's own `on` narrows it further)."""

    tasks: tuple[Task, ...]
    ids: Tensor  # ascending
    moment: Moment
    keep: bool = True  # False: clients forget what this visit would have them keep (a look, not a step)

    def asked_of(self, client: int) -> tuple[Task | None, ...]:
        """The tasks as this client gets them: None where it is not meant."""
        return tuple(t if t.on is None or client in self._on(t) else None for t in self.tasks)

    def _on(self, task: Task) -> frozenset[int]:
        cache: dict[int, frozenset[int]] = self.__dict__.setdefault("_cache", {})
        if id(task) not in cache:
            cache[id(task)] = frozenset(task.on.tolist()) if task.on is not None else frozenset()
        return cache[id(task)]


@dataclass(frozen=True)
class Missing:
    """A client that was asked and did not give a usable answer."""

    client: int
    reason: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a visit brought back: a reply per task, and who is missing from all of them."""

    replies: tuple[Reply, ...]
    missing: tuple[Missing, ...]


class Engine(Protocol):
    """The contract. `memory` is what clients keep, where the engine (a simulation) keeps it for them."""

    memory: Memory

    def visit(self, visit: Visit) -> Outcome:
        """Carry the tasks out and bring the answers back, by ascending client id."""

    def close(self) -> None:
        """Let go of processes and connections."""


def reason(error: BaseException) -> str:
    """Why a client is missing, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, CoterieError) else f"{type(error).__name__}: {text}"


Tree = TypeVar("Tree")


def restrict(tree: Tree, ids: Tensor) -> Tree:
    """The same tasks, knowing of these clients only: what is sent to them."""
    if isinstance(tree, ByClient):
        return tree.only(ids)  # type: ignore[return-value]
    if isinstance(tree, tuple):
        return tuple(restrict(v, ids) for v in tree)  # type: ignore[return-value]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        old = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
        new = {name: restrict(value, ids) for name, value in old.items()}
        return tree if all(new[k] is old[k] for k in old) else dataclasses.replace(tree, **new)
    return tree


def collate(visit: Visit, answered: Mapping[int, Sequence[Answer | None]]) -> tuple[Reply, ...]:
    """A reply per task from the answers of those who gave them, by ascending id."""
    replies: list[Reply] = []
    for number, task in enumerate(visit.tasks):
        mine = {c: a for c in sorted(answered) if (a := answered[c][number]) is not None}
        ids = torch.tensor(list(mine), dtype=torch.int64)
        n = torch.tensor([a.n for a in mine.values()], dtype=torch.int64)
        match task:
            case Fit():
                fits = [a for a in mine.values() if isinstance(a, FitAnswer)]
                thetas = [a.theta for a in fits if a.theta is not None]
                loss = torch.tensor([a.loss for a in fits])
                replies.append(Fitted(ids, n, loss, torch.stack(thetas) if thetas else None, _choices(fits)))
            case Score():
                rows = [a.scores for a in mine.values() if isinstance(a, ScoreAnswer)]
                replies.append(Scored(ids, n, torch.stack(rows) if rows else torch.empty(0, len(task.centers))))
            case Evaluate():
                seen = [a for a in mine.values() if isinstance(a, EvaluateAnswer)]
                loss, accuracy, macro_f1 = (
                    torch.tensor([getattr(a, name) for a in seen]) for name in ("loss", "accuracy", "macro_f1")
                )
                shares = [a.shares for a in seen if a.shares is not None]
                soft = torch.stack(shares) if shares and len(shares) == len(seen) else None
                replies.append(Evaluated(ids, n, loss, accuracy, macro_f1, _choices(seen), soft))
    return tuple(replies)


def _choices(answers: Sequence[FitAnswer | EvaluateAnswer]) -> Tensor | None:
    rows = [a.choice for a in answers if a.choice is not None]
    return torch.tensor(rows, dtype=torch.int64) if answers and len(rows) == len(answers) else None
