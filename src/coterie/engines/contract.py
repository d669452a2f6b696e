"""What every engine is: it takes a visit to the clients and brings back what they answered.

An engine knows nothing of methods. A client that fails, drops out or answers with NaN is not an
error: it is missing from the replies and named, with the reason, in the outcome.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor

from coterie.client.contract import Answer, DescribeAnswer, EvaluateAnswer, FitAnswer, Memory, Moment, ScoreAnswer
from coterie.core.allocation import BufferPool
from coterie.core.errors import NOT_FINITE, CoterieError
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Described, Evaluate, Evaluated, Fit, Fitted, Reply, Score, Scored, Task
from coterie.core.text import client_name

# A step of training; newcomers take their places; scores; a look that is neither (a search for a learning rate).
Kind: TypeAlias = Literal["train", "admit", "evaluate", "probe"]


@dataclass(frozen=True, eq=False)
class Visit:
    """One trip: these tasks, in this order, to these clients (a task's own `on` narrows it further)."""

    tasks: tuple[Task, ...]
    ids: Tensor  # ascending
    moment: Moment
    kind: Kind = "train"

    @property
    def keep(self) -> bool:
        """Whether clients keep what this visit would have them keep; only training changes what they have."""
        return self.kind == "train"

    def tasks_for(self, client: int) -> tuple[Task | None, ...]:
        """The tasks for this client: None where a task is not for it."""
        return tuple(t if t.on is None or client in self._on(t) else None for t in self.tasks)

    def _on(self, task: Task) -> frozenset[int]:
        cache: dict[int, frozenset[int]] = self.__dict__.setdefault("_cache", {})
        if id(task) not in cache:
            cache[id(task)] = frozenset(task.on.tolist()) if task.on is not None else frozenset()
        return cache[id(task)]


ERRORS = ("mae", "constant", "variance")  # of an answer to an `Evaluate`, where it is a regression


@dataclass(frozen=True)
class Missing:
    """A client that was asked and did not give a usable answer."""

    client: int
    reason: str
    name: str | None = None  # where clients have names; given by `RoundAsk`, which knows them
    rejected: bool = False  # its answer was not accepted

    @property
    def who(self) -> str:
        """The client, as named in messages."""
        return client_name(None, self.client) if self.name is None else client_name([self.name], 0)

    @property
    def diverged(self) -> bool:
        """Whether its training diverged to NaN or Inf, read from the reason: over a network nothing else is sent."""
        return NOT_FINITE in self.reason


def named(missing: Missing, names: Sequence[str] | None) -> Missing:
    """With the client's name, where clients have names (by id)."""
    return (
        missing
        if names is None or missing.client >= len(names)
        else dataclasses.replace(missing, name=names[missing.client])
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a visit: a reply per task, and the clients that are missing from all of them."""

    replies: tuple[Reply, ...]
    missing: tuple[Missing, ...]
    sealed: bool = False  # only the method sees the replies: single answers must not show, nor whether there are any


class Engine(Protocol):
    """The contract. `memory` is what clients keep, where the engine (a simulation) keeps it for them."""

    memory: Memory

    def visit(self, visit: Visit) -> Outcome:
        """Carry the tasks out and bring the answers back, by ascending client id."""

    def close(self) -> None:
        """Release processes and connections."""


@runtime_checkable
class WaitsForClients(Protocol):
    """An engine whose clients come and go."""

    def wait(self) -> None:
        """Before a round: wait until enough clients are connected."""


@runtime_checkable
class RejectionListener(Protocol):
    """An engine that wants to know whose update was rejected: over a network, repeated rejection leads to a ban."""

    def rejected(self, client: int, why: str) -> None:
        """After a visit: this client's update was not accepted."""


@dataclass
class Traffic:
    """What was actually sent over the network."""

    messages: int = 0
    down: int = 0  # bytes
    up: int = 0


@runtime_checkable
class CountsTraffic(Protocol):
    """An engine that sends, and counts what it sends."""

    traffic: Traffic


def arithmetic(engine: object) -> str:
    """How an engine rounds: engines with the same value give the same bits."""
    return str(getattr(engine, "arithmetic", "sequential"))


def device_of(engine: object) -> str:
    """The device on which an engine computes clients."""
    return str(getattr(engine, "device", "cpu"))


def idle_seconds(engine: object) -> float:
    """How long the processes of an engine had nothing to do during its visits so far, on average; 0 without any."""
    return float(getattr(engine, "idle_seconds", 0.0))


def reason(error: BaseException) -> str:
    """Why a client is missing, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, CoterieError) else f"{type(error).__name__}: {text}"


Tree = TypeVar("Tree")


def restrict(tree: Tree, ids: Tensor) -> Tree:
    """The same tasks, restricted to these clients: what is sent to them."""
    if isinstance(tree, ByClient):
        return tree.only(ids)  # type: ignore[return-value]
    if isinstance(tree, tuple):
        return tuple(restrict(v, ids) for v in tree)  # type: ignore[return-value]
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        old = {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
        new = {name: restrict(value, ids) for name, value in old.items()}
        return tree if all(new[k] is old[k] for k in old) else dataclasses.replace(tree, **new)
    return tree


class ReplyBuilder:
    """A visit's answers as they arrive. A model goes into its row of the reply at once, so that none is held twice."""

    def __init__(self, visit: Visit, blocks: BufferPool | None = None) -> None:
        self._visit, self._blocks = visit, blocks
        self._answers: list[dict[int, Answer]] = [{} for _ in visit.tasks]
        self._rows: dict[int, dict[int, int]] = {}  # of the tasks that bring models: the row of each client
        self._models: dict[int, Tensor] = {}

    def add(self, client: int, answers: Sequence[Answer | None]) -> None:
        """Add the answers of a client. They are copied, so the caller may discard them."""
        for number, answer in enumerate(answers):
            if answer is None:
                continue
            if isinstance(answer, FitAnswer):
                if answer.theta is not None:
                    self._place(number, answer.theta)[self._rows[number][client]] = answer.theta
                sketch = None if answer.sketch is None else answer.sketch.clone()
                answer = dataclasses.replace(answer, theta=None, sketch=sketch)
            elif isinstance(answer, ScoreAnswer):
                answer = dataclasses.replace(answer, scores=answer.scores.clone())
            elif isinstance(answer, DescribeAnswer):
                answer = dataclasses.replace(answer, row=answer.row.clone())
            elif isinstance(answer, EvaluateAnswer) and answer.shares is not None:
                answer = dataclasses.replace(answer, shares=answer.shares.clone())
            self._answers[number][client] = answer

    def _place(self, number: int, like: Tensor) -> Tensor:
        if number not in self._models:
            asked = self._visit.tasks[number].on
            there = self._visit.ids if asked is None else self._visit.ids[torch.isin(self._visit.ids, asked)]
            self._rows[number] = {client: row for row, client in enumerate(there.tolist())}
            empty = torch.empty if self._blocks is None else self._blocks.empty
            self._models[number] = empty((len(there), len(like)), dtype=like.dtype)
        return self._models[number]

    def _theta(self, number: int, clients: Sequence[int]) -> Tensor | None:
        if number not in self._models:
            return None
        models, rows = self._models[number], self._rows[number]
        return models if len(clients) == len(models) else models[[rows[client] for client in clients]]

    def replies(self) -> tuple[Reply, ...]:
        """A reply per task from those who answered, by ascending id."""
        return tuple(self._reply(number, task) for number, task in enumerate(self._visit.tasks))

    def _reply(self, number: int, task: Task) -> Reply:
        mine = {client: self._answers[number][client] for client in sorted(self._answers[number])}
        ids = torch.tensor(list(mine), dtype=torch.int64)
        n = torch.tensor([a.n for a in mine.values()], dtype=torch.int64)
        match task:
            case Fit():
                fits = [a for a in mine.values() if isinstance(a, FitAnswer)]
                loss = torch.tensor([a.loss for a in fits])
                sketches = [a.sketch for a in fits if a.sketch is not None]
                sketch = torch.stack(sketches) if sketches else None
                return Fitted(ids, n, loss, self._theta(number, list(mine)), _choices(fits), sketch)
            case Score():
                rows = [a.scores for a in mine.values() if isinstance(a, ScoreAnswer)]
                return Scored(ids, n, torch.stack(rows) if rows else torch.empty(0, task.width))
            case Evaluate():
                return _evaluated(ids, n, [a for a in mine.values() if isinstance(a, EvaluateAnswer)])
            case Describe():
                said = [a.row for a in mine.values() if isinstance(a, DescribeAnswer)]
                return Described(ids, n, torch.stack(said) if said else torch.empty(0, task.length))


def _evaluated(ids: Tensor, n: Tensor, seen: Sequence[EvaluateAnswer]) -> Evaluated:
    def column(name: str, dtype: torch.dtype | None = None) -> Tensor:
        values = torch.tensor([getattr(a, name) for a in seen], dtype=dtype)
        values[n == 0] = torch.nan  # without samples there is no score
        return values

    shares = [a.shares for a in seen if a.shares is not None]
    soft = torch.stack(shares) if shares and len(shares) == len(seen) else None
    scores = column("accuracy"), column("macro_f1"), _choices(seen), soft
    mae, constant, variance = (column(name, torch.float64) for name in ERRORS)
    if any(a.scores for a in seen):
        return Evaluated(ids, n, column("loss", torch.float64), *scores, scores=_scores(seen))
    if bool(mae.isnan().all()):
        return Evaluated(ids, n, column("loss"), *scores)
    # A regression: in the targets' own units, whose squares may overflow single precision.
    loss = column("loss", torch.float64)
    return Evaluated(ids, n, loss, *scores, mae, constant, variance, _levels(seen))


def _scores(seen: Sequence[EvaluateAnswer]) -> dict[str, Tensor]:
    """The scores of an objective by name; NaN for a client that has none."""
    names = dict.fromkeys(name for a in seen for name, _ in a.scores)
    own = [dict(a.scores) if a.n else {} for a in seen]
    return {name: torch.tensor([one.get(name, math.nan) for one in own], dtype=torch.float64) for name in names}


def _levels(seen: Sequence[EvaluateAnswer]) -> Tensor | None:
    """(n, targets) the means of clients' targets, NaN for one without samples."""
    targets = {len(a.level) for a in seen if a.n}
    many = targets.pop() if len(targets) == 1 else 0
    rows = [a.level if a.n else (math.nan,) * many for a in seen]
    return torch.tensor(rows, dtype=torch.float64) if many else None


def _choices(answers: Sequence[FitAnswer | EvaluateAnswer]) -> Tensor | None:
    rows = [a.choice for a in answers if a.choice is not None]
    return torch.tensor(rows, dtype=torch.int64) if answers and len(rows) == len(answers) else None


# For computing together: the same chunks for any number of workers, because what is computed together rounds together.
CHUNKS = 16
CHUNKS_PER_WORKER = 6  # enough that the last chunk is short, few enough that messages cost little


def make_chunks(ids: Tensor, sizes: Tensor, chunks: int) -> list[tuple[int, ...]]:
    """About so many chunks; the last ones are the lightest, so that no worker waits long for another."""
    order = torch.argsort(sizes, descending=True, stable=True)
    share = float(sizes.sum()) / chunks
    found: list[tuple[int, ...]] = []
    chunk: list[int] = []
    work = 0
    for client, size in zip(ids[order].tolist(), sizes[order].tolist(), strict=True):
        chunk.append(client)
        work += size
        if work >= share:
            found.append(tuple(chunk))
            chunk, work = [], 0
    return [*found, tuple(chunk)] if chunk else found
