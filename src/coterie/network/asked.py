"""A visit as one client is sent it, and whether what came back answers it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.byclient import ByClient
from coterie.client import Answer, EvaluateAnswer, FitAnswer, ScoreAnswer
from coterie.engines.contract import Visit
from coterie.network.wire import WireError
from coterie.tasks import All, Best, Estimated, Evaluate, Fit, Mix, Own, Pick, Ref, Row, Score, Task

SAMPLES = 1 << 31  # more than any client has
LARGEST = torch.finfo(torch.float32).max  # a loss beyond is infinite where it is kept


def for_client(visit: Visit, client: int) -> tuple[Task | None, ...]:
    """What this one client is given and nothing else: its own row, its own mixture, its own numbers.

    The default of an `Own` is always in it: who sends does not know what a client still keeps. What has no value for
    this client goes out as it is, without its numbers: the client may not need it, and if it does, says what is wrong.
    """
    folding = _Folding(client)
    return tuple(None if task is None else folding.task(task) for task in visit.asked_of(client))


class _Folding:
    """Turns what is meant for many into what one of them gets; the same reference always into the same object."""

    def __init__(self, client: int) -> None:
        self.client = torch.tensor([client])
        self.done: dict[int, Ref] = {}
        self.rows: dict[tuple[int, int], Row] = {}
        self.mixtures: dict[tuple[int, int], All] = {}

    def task(self, task: Task) -> Task:
        match task:
            case Fit():
                weights = task.weights
                return dataclasses.replace(
                    task,
                    start=self.ref(task.start),
                    anchor=self.maybe(task.anchor),
                    mu=self.number(task.mu),
                    offset=self.maybe(task.offset),
                    weights=weights and dataclasses.replace(weights, prior=self.ref(weights.prior)),
                    on=None,
                )
            case Score():
                return dataclasses.replace(task, given=self.maybe(task.given), prior=self.maybe(task.prior), on=None)
            case Evaluate():
                return dataclasses.replace(
                    task,
                    models=tuple(self.ref(model) for model in task.models),
                    mixture=self.maybe(task.mixture),
                    belongs=self.maybe(task.belongs),
                    on=None,
                )

    def maybe(self, ref: Ref | None) -> Ref | None:
        return None if ref is None else self.ref(ref)

    def ref(self, ref: Ref) -> Ref:
        if id(ref) not in self.done:
            self.done[id(ref)] = self.fold(ref)
        return self.done[id(ref)]

    def fold(self, ref: Ref) -> Ref:
        match ref:
            case Pick(centers, labels):
                return self.row(centers, labels)
            case Mix(centers, ByClient() as weights):
                return self.mixture(centers, weights)
            case Best(_, given) if given is not None:
                return dataclasses.replace(ref, given=self.ref(given))
            case Own(slot, default):
                return Own(slot, self.ref(default))
            case _:
                return ref

    def row(self, centers: Tensor, labels: ByClient) -> Ref:
        row = int(labels.at(self.client, default=-1)[0])
        if not 0 <= row < len(centers):
            return Pick(centers[:, :0], labels.only(self.client))
        return self.rows.setdefault((id(centers), row), Row(centers[row], row))

    def mixture(self, centers: Tensor, weights: ByClient) -> Ref:
        if not weights.has(self.client):
            return Mix(centers[:, :0], weights.only(self.client))
        key = (id(centers), id(weights))
        if key not in self.mixtures:  # to the same bits as the client would
            self.mixtures[key] = All(weights.at(self.client)[0].to(centers.dtype) @ centers)
        return self.mixtures[key]

    def number(self, mu: float | ByClient) -> float | ByClient:
        if not isinstance(mu, ByClient):
            return mu
        return float(mu.at(self.client)[0]) if mu.has(self.client) else mu.only(self.client)


# ------------------------------------------------------------------------------------------------------------ answers


def check_answers(
    answers: Sequence[Answer | None],
    tasks: Sequence[Task | None],
    size: int,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Whether a client answered what it was asked (`for_client`), with models of this size and type."""
    if len(answers) != len(tasks):
        raise WireError(f"{len(tasks)} tasks and {len(answers)} answers")
    for number, (answer, task) in enumerate(zip(answers, tasks, strict=True)):
        try:
            match task, answer:
                case None, None:
                    pass
                case Fit(), FitAnswer():
                    _check_fit(answer, task, size, dtype)
                case Score(), ScoreAnswer():
                    _check_samples(answer.n, 1)
                    _check_vector(answer.scores, len(task.centers), (dtype, torch.float32), "scores")
                case Evaluate(), EvaluateAnswer():
                    _check_evaluate(answer, task, dtype)
                case _:
                    raise WireError(f"a {type(answer).__name__} to a {type(task).__name__}")
        except WireError as error:
            raise WireError(f"answer {number}: {error}") from None


def _check_fit(answer: FitAnswer, task: Fit, size: int, dtype: torch.dtype) -> None:
    _check_samples(answer.n, 1)
    _check_loss(answer.loss)
    if (answer.theta is not None) != task.send:
        raise WireError(f"theta: {'asked for and not sent' if task.send else 'sent and not asked for'}")
    if answer.theta is not None:
        _check_vector(answer.theta, size, (dtype,), "theta")
    _check_choice(answer.choice, (task.start,))


def _check_evaluate(answer: EvaluateAnswer, task: Evaluate, dtype: torch.dtype) -> None:
    _check_samples(answer.n, 0)
    _check_loss(answer.loss)
    for name, value in (("accuracy", answer.accuracy), ("macro_f1", answer.macro_f1)):
        if not _number(value) or not (math.isnan(value) or 0 <= value <= 1):
            raise WireError(f"{name}: from 0 to 1, or NaN, not {value!r}")
    belongs = task.belongs if task.belongs is not None else task.mixture
    if belongs is None:
        if answer.shares is not None:
            raise WireError("shares: sent and not asked for")
        _check_choice(answer.choice, task.models)
        return
    if answer.shares is None:
        raise WireError("shares: asked for and not sent")
    _check_vector(answer.shares, _length(belongs), (dtype, torch.float32), "shares")
    if type(answer.choice) is not int or answer.choice != int(answer.shares.argmax()):
        raise WireError(f"choice: {answer.choice!r} is not where the largest share is")


def _check_samples(n: object, least: int) -> None:
    if type(n) is not int or not least <= n < SAMPLES:
        raise WireError(f"n: from {least} to {SAMPLES - 1} samples, not {n!r}")


def _check_loss(loss: object) -> None:
    if not _number(loss) or not abs(loss) <= LARGEST:  # type: ignore[arg-type]
        raise WireError(f"loss: a finite number, not {loss!r}")


def _number(value: object) -> bool:
    return type(value) in (int, float)


def _check_vector(vector: object, length: int, dtypes: Sequence[torch.dtype], what: str) -> None:
    if not isinstance(vector, Tensor) or vector.shape != (length,) or vector.dtype not in dtypes:
        found = f"{vector.dtype} {tuple(vector.shape)}" if isinstance(vector, Tensor) else type(vector).__name__
        raise WireError(f"{what}: {dtypes[0]} ({length},), not {found}")
    if not bool(vector.isfinite().all()):
        raise WireError(f"{what}: NaN or Inf")


def _check_choice(choice: object, refs: Sequence[Ref]) -> None:
    """The first reference that is a row says which; what a client keeps need not be one."""
    allowed: set[int | None] = {None}
    for ref in refs:
        rows = _rows(ref)
        allowed = (allowed - {None}) | rows
        if None not in rows:
            break
    if type(choice) not in (int, type(None)) or choice not in allowed:
        rows_said = sorted(row for row in allowed if row is not None)
        offered = f"one of the {len(rows_said)} rows from {rows_said[0]} to {rows_said[-1]}" if rows_said else "None"
        raise WireError(f"choice: {offered}, not {choice!r}")


def _rows(ref: Ref) -> set[int | None]:
    """Which rows a reference may turn out to be; None where it may be no row at all."""
    match ref:
        case Row(_, row):
            return {row}
        case Pick(centers) | Best(centers):
            return set(range(len(centers)))
        case Own(_, Pick() | Row() | Best() as default):  # told even where what is kept stands in for it
            return _rows(default)
        case Own(_, default):
            return _rows(default) | {None}
        case All() | Mix() | Estimated():
            return {None}


def _length(ref: Ref) -> int:
    """Of the vector that a reference means."""
    match ref:
        case All(theta) | Row(theta, _):
            return len(theta)
        case Pick(centers) | Best(centers) | Mix(centers):
            return centers.shape[1]
        case Estimated(centers):
            return len(centers)
        case Own(_, default):
            return _length(default)
