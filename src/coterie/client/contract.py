"""What one client has, what it is asked in a visit, what it answers, and what it keeps between visits.

An engine passes a client its values with the tasks and stores what a successful visit wrote. A visit that fails
writes nothing. Only clients that were visited use memory; the rest is stored in files (see `allocation.stored`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from coterie.core.allocation import held, room, stored
from coterie.core.errors import CoterieError
from coterie.core.tasks import Task
from coterie.data.scale import TargetScale


@dataclass(frozen=True)
class Moment:
    """When a visit happens. Together with the client's id it is the key of the client's random numbers."""

    seed: int
    round: int
    task: int  # the number of the visit's first task within the round


@dataclass(frozen=True, eq=False)
class ClientTasks:
    """A client to visit: its tasks (None: not for this client), and what it keeps."""

    client: int
    tasks: tuple[Task | None, ...]
    keeps: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class FitAnswer:
    """A client's answer to a `Fit`."""

    n: int
    loss: float
    theta: Tensor | None
    choice: int | None
    sketch: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ScoreAnswer:
    """A client's answer to a `Score`."""

    n: int
    scores: Tensor


@dataclass(frozen=True, eq=False)
class EvaluateAnswer:
    """A client's answer to an `Evaluate`."""

    n: int
    loss: float
    accuracy: float
    macro_f1: float
    choice: int | None
    shares: Tensor | None = None
    mae: float = math.nan  # of regressions, like all that follow (see `metrics.Errors`)
    constant: float = math.nan
    variance: float = math.nan
    level: tuple[float, ...] = ()  # empty where there are more than `evaluation.MANY_TARGETS`
    scores: tuple[tuple[str, float], ...] = ()  # of an objective of one's own, by name


@dataclass(frozen=True, eq=False)
class DescribeAnswer:
    """A client's answer to a `Describe`."""

    n: int
    row: Tensor


Answer: TypeAlias = FitAnswer | ScoreAnswer | EvaluateAnswer | DescribeAnswer


@dataclass(frozen=True, eq=False)
class VisitResult:
    """The result of a successful visit: an answer per task (None if not asked), and what the client now keeps."""

    answers: tuple[Answer | None, ...]
    keeps: Mapping[str, Tensor]


class ClientData(Protocol):
    """A client's own data: inputs and labels for training and testing."""

    @property
    def train(self) -> tuple[Tensor, Tensor]: ...

    @property
    def test(self) -> tuple[Tensor, Tensor]: ...

    @property
    def target(self) -> TargetScale | None:
        """How targets of a regression are standardised, if they are."""

    @property
    def target_mean(self) -> Tensor:
        """(targets,) the mean of the training targets of a regression, in original units."""


class ClientDataSource(Protocol):
    """Where clients' data is found by their ids."""

    def client(self, client: int) -> ClientData:
        """The data of one client."""


@runtime_checkable
class ChangingDataSource(Protocol):
    """Where clients' data is found that may change by round."""

    def at(self, round: int) -> ClientDataSource:
        """The data as it is in a round, counted from 0."""


def at_round(source: ClientDataSource, round: int) -> ClientDataSource:
    """The data as it is in a round."""
    return source.at(round) if isinstance(source, ChangingDataSource) else source


Samples: TypeAlias = tuple[Tensor, Tensor]


def samples_of(data: ClientData, split: Literal["train", "val", "test"]) -> Samples:
    """The samples of one split."""
    if split == "val":  # a client need not have a validation split
        found: Samples | None = getattr(data, "val", None)
        return (data.test[0][:0], data.test[1][:0]) if found is None else found
    return data.test if split == "test" else data.train


class Memory:
    """Every client's values, by client and name."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = room() if limit is None else limit  # bytes
        self._held = 0  # of those
        self._clients: dict[int, dict[str, Tensor]] = {}
        self._before: dict[int, dict[str, Tensor]] = {}  # of those written to since `begin`

    def begin(self) -> None:
        """Start an attempt: `undo` returns to this point."""
        self._before = {}

    def undo(self) -> None:
        """Forget what was written since `begin`: an attempt that is repeated leaves no trace."""
        self._clients |= self._before
        self._clients = {client: kept for client, kept in self._clients.items() if kept}
        self._before = {}
        self._held = sum(held(value) for kept in self._clients.values() for value in kept.values())

    def read(self, client: int) -> Mapping[str, Tensor]:
        """What this client keeps (empty before its first visit)."""
        return self._clients.get(client, {})

    def write(self, client: int, values: Mapping[str, Tensor]) -> None:
        """Keep these values, in addition to those with other names."""
        if values:
            kept = self._clients.setdefault(client, {})
            self._before.setdefault(client, dict(kept))
            for slot, value in values.items():
                self._held -= held(kept.get(slot))
                kept[slot] = stored(value, self._limit - self._held)
                self._held += held(kept[slot])

    def tensors(self) -> dict[str, Tensor]:
        """All of it as named tensors, for a checkpoint."""
        return {f"{c}/{slot}": v for c, kept in sorted(self._clients.items()) for slot, v in sorted(kept.items())}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace all values by what `tensors` returned."""
        self._clients, self._held = {}, 0
        for key, value in tensors.items():
            client, _, slot = key.partition("/")
            if not client.isdigit() or not slot:
                raise CoterieError(f"'{key}' is not the name of something a client keeps", code="checkpoint-damaged")
            self.write(int(client), {slot: value})
