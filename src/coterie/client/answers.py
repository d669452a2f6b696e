"""What one client is asked in a visit, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from coterie.core.tasks import Task


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
