"""A visit as one client is sent it, and whether what came back answers it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.client.answers import Answer, DescribeAnswer, EvaluateAnswer, FitAnswer, ScoreAnswer
from coterie.core.references import (
    All,
    Best,
    Mix,
    OneRow,
    Own,
    Pick,
    Posterior,
    Ref,
    Row,
    length_of,
    substitute,
)
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Evaluate, Fit, Score, Task
from coterie.engines.contract import ERRORS, Visit
from coterie.network.protocol.wire import Limits, WireError

SAMPLES = 1 << 31  # more than any client has
WIDEST = 8  # bytes of a score, at most
OUTLINE = 1 << 14  # bytes of an outline for each answer, at most: some 300 are usual
ROUNDING = 1e-3  # how far off honest arithmetic may be
LARGEST = torch.finfo(torch.float32).max  # a loss beyond is infinite where it is kept
SQUARE = LARGEST**2  # the loss of a regression is in the squared units of its targets
SCORES = 16  # of an objective
NAME = 64  # characters of the name of a score


def for_client(visit: Visit, client: int) -> tuple[Task | None, ...]:
    """What this one client is given and nothing else: its own row, its own mixture, its own numbers.

    The default of an `Own` is always in it: who sends does not know what a client still keeps. What has no value for
    this client goes out as it is, without its numbers: the client may not need it, and if it does, says what is wrong.
    """
    folding = _Folding(client)
    return tuple(None if task is None else folding.task(task) for task in visit.tasks_for(client))


class _Folding:
    """Turns what is meant for many into what one of them gets; the same reference always into the same object."""

    def __init__(self, client: int) -> None:
        self.client, self.ids = client, torch.tensor([client])
        self.done: dict[int, Ref | Posterior] = {}
        self.rows: dict[tuple[int, int, int], Row] = {}
        self.mixtures: dict[tuple[int, int], All] = {}

    def task(self, task: Task) -> Task:
        folded = dataclasses.replace(substitute(task, self.node), on=None)
        return dataclasses.replace(folded, mu=self.number(folded.mu)) if isinstance(folded, Fit) else folded

    def node(self, node: Ref | Posterior) -> Ref | Posterior:
        if id(node) not in self.done:
            self.done[id(node)] = self.fold(node)
        return self.done[id(node)]

    def fold(self, node: Ref | Posterior) -> Ref | Posterior:
        match node:
            case Pick():
                return self.row(node)
            case Mix(centers, ByClient() as weights):
                return self.mixture(centers, weights)
            case _:
                return substitute(node, self.node)

    def row(self, pick: Pick) -> Ref:
        row = pick.row_of(self.client)
        if row is None:
            return Pick(pick.centers[:, :0], pick.labels.only(self.ids))
        personal = pick.personal and substitute(pick.personal, self.node)
        key = id(pick.centers), row, id(pick.personal)
        return self.rows.setdefault(key, Row(pick.centers[row], row, personal))

    def mixture(self, centers: Tensor, weights: ByClient) -> Ref:
        mine = weights.get(self.client)
        if mine is None:
            return Mix(centers[:, :0], weights.only(self.ids))
        key = (id(centers), id(weights))
        if key not in self.mixtures:  # to the same bits as the client would
            self.mixtures[key] = All(mine.to(centers.dtype) @ centers)
        return self.mixtures[key]

    def number(self, mu: float | ByClient) -> float | ByClient:
        if not isinstance(mu, ByClient):
            return mu
        mine = mu.get(self.client)
        return mu.only(self.ids) if mine is None else float(mine)


# ------------------------------------------------------------------------------------------------------------ answers


def answer_limits(tasks: Sequence[Task | None], size: int) -> Limits:
    """How large the answer to these tasks (`for_client`) may be, with models of `size` numbers: what is larger is
    refused before it is decompressed."""
    arrays = [found for task in tasks if task is not None for found in _vectors(task, size) if found is not None]
    outline = OUTLINE * (1 + len(tasks))
    raw = sum(arrays)
    # What cannot be compressed grows a little.
    return Limits(largest=raw + raw // 1000 + 64 * len(arrays) + outline, arrays=len(arrays), outline=outline)


def _vectors(task: Task, size: int) -> tuple[int | None, ...]:
    """Bytes of the vectors in the answer to a task; None where there is none. All of a model may stay with the client:
    then an empty vector is sent."""
    match task:
        case Fit():
            lengths = (task.sends(size) if task.send else None, task.sketch)
            return tuple(None if n is None else n * torch.float32.itemsize for n in lengths)
        case Score():
            return (task.width * WIDEST,)
        case Evaluate():
            belongs = task.belongs if task.belongs is not None else task.mixture
            return (None if belongs is None else length_of(belongs) * WIDEST,)
        case Describe():
            return (task.length * WIDEST,)


def check_answers(
    answers: Sequence[Answer | None],
    tasks: Sequence[Task | None],
    size: int,
    dtype: torch.dtype = torch.float32,
    norm: float | None = None,
) -> None:
    """Whether a client answered what it was asked (`for_client`), with models of this size and type.

    norm: the largest that a model (or a sketch of one) may have; None: any finite one.
    """
    if len(answers) != len(tasks):
        raise WireError(f"{len(tasks)} tasks and {len(answers)} answers", code="wire-unexpected")
    for number, (answer, task) in enumerate(zip(answers, tasks, strict=True)):
        try:
            match task, answer:
                case None, None:
                    pass
                case Fit(), FitAnswer():
                    _check_fit(answer, task, size, dtype)
                    _check_norm(answer, norm)
                case Score(), ScoreAnswer():
                    _check_samples(answer.n, 1)
                    _check_vector(answer.scores, task.width, (dtype, torch.float32), "scores")
                    _check_scores(answer.scores, task.rule, answer.n if task.rule == "classes" else 1)
                case Evaluate(), EvaluateAnswer():
                    _check_evaluate(answer, task, dtype)
                case Describe(), DescribeAnswer():
                    _check_samples(answer.n, 1)
                    _check_vector(answer.row, task.length, (dtype,), "row")
                    _check_description(answer.row, task)
                case _:
                    raise WireError(f"a {type(answer).__name__} to a {type(task).__name__}", code="wire-unexpected")
        except WireError as error:
            raise WireError(f"answer {number}: {error}", code=error.code) from None


def _check_fit(answer: FitAnswer, task: Fit, size: int, dtype: torch.dtype) -> None:
    _check_samples(answer.n, 1)
    _check_loss(answer.loss)
    asked = ("theta", answer.theta, task.sends(size) if task.send else None), ("sketch", answer.sketch, task.sketch)
    for what, vector, length in asked:
        if (vector is None) != (length is None):
            raise WireError(
                f"{what}: {'sent and not asked for' if length is None else 'asked for and not sent'}",
                code="wire-answer-invalid",
            )
        if vector is not None and length is not None:
            _check_vector(vector, length, (dtype,), what)
    _check_choice(answer.choice, (task.start,))


def _check_norm(answer: FitAnswer, most: float | None) -> None:
    if most is None:
        return
    for vector in (answer.theta, answer.sketch):
        if vector is not None and not float(torch.linalg.vector_norm(vector, dtype=torch.float64)) <= most:
            raise WireError(f"a model whose norm is beyond {most:g} (network.norm)", code="wire-answer-invalid")


def _check_evaluate(answer: EvaluateAnswer, task: Evaluate, dtype: torch.dtype) -> None:
    _check_samples(answer.n, 0)
    for name in ERRORS:
        value = getattr(answer, name)
        if not _number(value) or not (math.isnan(value) or 0 <= value <= SQUARE):
            raise WireError(f"{name}: at least 0 and finite, or NaN, not {value!r}", code="wire-answer-invalid")
    if type(answer.level) is not tuple or not all(_number(v) and abs(v) <= LARGEST for v in answer.level):
        raise WireError(f"level: a tuple of finite numbers, not {answer.level!r:.80}", code="wire-answer-invalid")
    _check_named_scores(answer.scores)
    _check_loss(answer.loss, LARGEST if math.isnan(answer.mae) and not answer.scores else SQUARE)
    for name, value in (("accuracy", answer.accuracy), ("macro_f1", answer.macro_f1)):
        if not _number(value) or not (math.isnan(value) or 0 <= value <= 1):
            raise WireError(f"{name}: from 0 to 1, or NaN, not {value!r}", code="wire-answer-invalid")
    belongs = task.belongs if task.belongs is not None else task.mixture
    if belongs is None:
        if answer.shares is not None:
            raise WireError("shares: sent and not asked for", code="wire-answer-invalid")
        _check_choice(answer.choice, task.models)
        return
    if answer.shares is None:
        raise WireError("shares: asked for and not sent", code="wire-answer-invalid")
    _check_vector(answer.shares, length_of(belongs), (dtype, torch.float32), "shares")
    if type(answer.choice) is not int or answer.choice != int(answer.shares.argmax()):
        raise WireError(f"choice: {answer.choice!r} is not where the largest share is", code="wire-answer-invalid")


def _check_named_scores(scores: object) -> None:
    if type(scores) is not tuple or len(scores) > SCORES or not all(_named_score(one) for one in scores):
        raise WireError(f"scores: at most {SCORES} names with finite numbers", code="wire-answer-invalid")


def _named_score(one: object) -> bool:
    if type(one) is not tuple or len(one) != 2 or type(one[0]) is not str:
        return False
    name, value = one
    return len(name) <= NAME and name.isidentifier() and _number(value) and abs(value) <= SQUARE


def _check_samples(n: object, least: int) -> None:
    if type(n) is not int or not least <= n < SAMPLES:
        raise WireError(f"n: from {least} to {SAMPLES - 1} samples, not {n!r}", code="wire-answer-invalid")


def _check_loss(loss: object, largest: float = LARGEST) -> None:
    if not _number(loss) or not abs(loss) <= largest:  # type: ignore[arg-type]
        raise WireError(f"loss: a finite number, not {loss!r}", code="wire-not-finite")


def _number(value: object) -> bool:
    return type(value) in (int, float)


def _check_vector(vector: object, length: int, dtypes: Sequence[torch.dtype], what: str) -> None:
    if not isinstance(vector, Tensor) or vector.shape != (length,) or vector.dtype not in dtypes:
        found = f"{vector.dtype} {tuple(vector.shape)}" if isinstance(vector, Tensor) else type(vector).__name__
        raise WireError(f"{what}: {dtypes[0]} ({length},), not {found}", code="wire-answer-invalid")
    if not bool(vector.isfinite().all()):
        raise WireError(f"{what}: NaN or Inf", code="wire-not-finite")


def _check_scores(scores: Tensor, rule: str, total: int) -> None:
    """Losses are not negative; votes and posteriors are shares of the samples, those by class add up to all samples."""
    if rule == "loss" and float(scores.min()) < -ROUNDING:
        raise WireError(
            f"scores: a loss is not negative, this one is {float(scores.min()):.3g}", code="wire-answer-invalid"
        )
    summed = float(scores.double().sum())
    if rule != "loss" and (float(scores.min()) < -ROUNDING or abs(summed - total) > ROUNDING * total):
        raise WireError(f"scores: from 0 on, and of sum {total}, not {summed:.3g}", code="wire-answer-invalid")


def _check_description(row: Tensor, task: Describe) -> None:
    """Labels are shares of the samples; singular vectors have length 1, or 0 where there are none."""
    if task.kind == "labels" and (float(row.min()) < 0 or abs(float(row.sum()) - 1) > ROUNDING):
        raise WireError(f"row: shares that sum to 1, not to {float(row.sum()):.3g}", code="wire-answer-invalid")
    if task.kind == "subspace":
        lengths = row.reshape(-1, task.size).norm(dim=1)
        if float(torch.minimum(lengths, (lengths - 1).abs()).max()) > ROUNDING:
            raise WireError("row: vectors of length 1, or 0", code="wire-answer-invalid")


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
        raise WireError(f"choice: {offered}, not {choice!r}", code="wire-answer-invalid")


def _rows(ref: Ref) -> set[int | None]:
    """Which rows a reference may turn out to be; None where it may be no row at all."""
    match ref:
        case Row(_, row):
            return {row}
        case Pick(centers) | Best(centers):
            return set(range(len(centers)))
        case Own(_, default):  # a row is told even where the client uses what it keeps instead
            return _rows(default) if isinstance(default, OneRow) else _rows(default) | {None}
        case _:
            return {None}
