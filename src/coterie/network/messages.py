"""The messages between server and client: Hello and ClientInfo, VisitRequest and VisitReply, or a Refusal of either.

What is frozen of a network is not sent with its models. A client builds the network and compares the hash; if it
differs, the client answers a VisitRequest with FrozenWanted, and gets the request again with the frozen part, once.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from coterie.client.contract import Answer, DescribeAnswer, EvaluateAnswer, FitAnswer, Moment, ScoreAnswer
from coterie.core.model import Model
from coterie.core.tables import ByClient
from coterie.core.tasks import (
    All,
    Best,
    Describe,
    Estimated,
    Evaluate,
    Fit,
    Local,
    Mix,
    OneRow,
    Own,
    Personal,
    Pick,
    Posterior,
    Ref,
    Row,
    Score,
    Task,
    length_of,
    substitute,
)
from coterie.engines.contract import ERRORS, Visit, reason
from coterie.network.wire import LIMITS, Payload, PayloadLimits, WireError, decode

if TYPE_CHECKING:
    from coterie.core.model import Shaped
    from coterie.training.config import Named


__all__ = [
    "PROTOCOL",
    "TO_CLIENT",
    "TO_SERVER",
    "ClientInfo",
    "FrozenWanted",
    "Hello",
    "ModelSpec",
    "Refusal",
    "VisitReply",
    "VisitRequest",
    "check_answers",
    "check_name",
    "for_client",
    "read_as_client",
    "read_as_server",
]

PROTOCOL = 6  # both sides must have the same; Hello and Refusal are the same in all versions
HASH = re.compile(r"|[0-9a-f]{64}")  # SHA-256
NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,64}")  # dots alone are names of directories
REASON = 500  # characters
NAMES = 2000  # characters


def check_name(name: str, what: str = "name") -> str:
    """A name that is safe in messages, logs and file names."""
    if not NAME.fullmatch(name):
        raise WireError(
            f"{what}: {name[:80]!r} is not a name: at most 64 letters, digits, '.', '_' and '-', such as hospital-3",
            code="wire-invalid-name",
        )
    return name


def _version(number: int | None) -> None:
    if number is not None and not 0 <= number < 1 << 63:
        raise WireError(f"the version of a client's state: from 0 to 2^63, not {number}")


def _counts(what: str, least: int, *numbers: int) -> None:
    if not all(least <= n < 1 << 31 for n in numbers):
        raise WireError(f"{what}: from {least} to 2147483647, not {', '.join(map(str, numbers))}")


@dataclass(frozen=True)
class Hello:
    """Server to client: introduce yourself."""

    protocol: int
    run: str

    def __post_init__(self) -> None:
        check_name(self.run, "run")


@dataclass(frozen=True)
class ClientInfo:
    """Client to server: its name and the shape of its data; never the data itself."""

    protocol: int
    name: str
    train: int  # samples
    test: int
    input_shape: tuple[int, ...]
    kind: Literal["classification", "regression"]
    outputs: int  # classes from 0 on, or targets
    version: str  # of coterie
    features: str = ""  # the names of the inputs, if they have names; a fingerprint if these are long
    classes: str = ""  # the same for the classes
    evaluations: bool = True  # False: it refuses them all, so it need not be asked

    def __post_init__(self) -> None:
        check_name(self.name)
        if len(self.version) > 64 or not self.version.isprintable():
            raise WireError(f"version: {self.version[:80]!r} is not one", code="network-version")
        for text in (self.features, self.classes):
            if len(text) > NAMES or not text.isprintable():
                raise WireError(
                    f"names are printable, and at most {NAMES} characters together", code="wire-invalid-name"
                )
        _counts("samples", 0, self.train, self.test)
        _counts("input_shape", 1, *self.input_shape)
        _counts("outputs", 1, self.outputs)


@dataclass(frozen=True)
class ModelSpec:
    """How a client builds the network that is trained."""

    name: str  # in the catalogue, or module:Net
    params: str  # JSON
    input_shape: tuple[int, ...]
    outputs: int
    loss: str  # by which both sides know that they train with the same
    size: int  # P, by which both sides know that they have built the same
    frozen: str = ""  # the hash of what is frozen, which is not in the vectors that are sent; empty: nothing is

    def __post_init__(self) -> None:
        _counts("input_shape", 1, *self.input_shape)
        _counts("outputs, size", 1, self.outputs, self.size)
        if not HASH.fullmatch(self.frozen):
            raise WireError("frozen: the hash of the network's frozen part is not one")
        if len(self.loss) > REASON or not self.loss.isprintable():
            raise WireError("loss: a printable name was expected")


def model_spec(named: Named, data: Shaped, model: Model) -> ModelSpec:
    """How clients build this model."""
    params = json.dumps(named.params, sort_keys=True)
    return ModelSpec(named.name, params, data.input_shape, data.outputs, model.loss_name, model.size, model.frozen)


@dataclass(frozen=True, eq=False)
class VisitRequest:
    """Server to client: the tasks of one visit, as this client gets them (see `for_client`)."""

    protocol: int
    run: str
    client: int
    tasks: tuple[Task | None, ...]
    moment: Moment
    keep: bool  # False: the client's state stays as it was (evaluation)
    base: int | None  # the version of the client's state that the server last heard of
    since: int  # the earliest round that the server may go back to
    network: ModelSpec
    frozen: Tensor | None = None  # the bytes of what is frozen, for a client that said that it needs them

    def __post_init__(self) -> None:
        check_name(self.run, "run")
        _counts("client, since", 0, self.client, self.since)
        _version(self.base)
        if self.frozen is not None and (self.frozen.dtype != torch.uint8 or self.frozen.ndim != 1):
            raise WireError("frozen: bytes were expected")


@dataclass(frozen=True, eq=False)
class VisitReply:
    """Client to server: an answer per task, None where there was none."""

    protocol: int
    run: str
    client: int
    round: int
    task: int
    answers: tuple[Answer | None, ...]
    wrote: int | None  # the version of the state written in this visit
    afresh: bool  # whether the state had been lost

    def __post_init__(self) -> None:
        check_name(self.run, "run")
        _counts("client, round, task", 0, self.client, self.round, self.task)
        _version(self.wrote)


@dataclass(frozen=True)
class FrozenWanted:
    """Client to server: the network as built here has another frozen part, and the right one was never received."""

    protocol: int
    run: str
    client: int
    frozen: str  # the hash of the part that is needed

    def __post_init__(self) -> None:
        check_name(self.run, "run")
        _counts("client", 0, self.client)
        if not self.frozen or not HASH.fullmatch(self.frozen):
            raise WireError("frozen: the hash of the network's frozen part is not one")


@dataclass(frozen=True)
class Refusal:
    """Why not, in one line. Client to server: the request failed. Server to client: it may not take part."""

    reason: str

    def __post_init__(self) -> None:
        if len(self.reason) > REASON or not self.reason.isprintable():
            raise WireError(f"a reason is one printable line of at most {REASON} characters")

    @staticmethod
    def of(error: BaseException) -> Refusal:
        """The reason of an error, shortened to what may be sent."""
        text = "".join(c if c.isprintable() else "?" for c in reason(error))
        return Refusal(text if len(text) <= REASON else text[: REASON - 3] + "...")


TO_CLIENT: tuple[type, ...] = (
    *(Hello, VisitRequest, Refusal, ModelSpec, Moment, Fit, Score, Evaluate, Describe, Local, ByClient),
    *(All, Row, Pick, Best, Mix, Own, Personal, Estimated, Posterior),
)
TO_SERVER: tuple[type, ...] = (
    *(ClientInfo, VisitReply, FrozenWanted, Refusal),
    *(FitAnswer, ScoreAnswer, EvaluateAnswer, DescribeAnswer),
)


FromClient: TypeAlias = ClientInfo | VisitReply | FrozenWanted | Refusal


def read_as_client(payload: Payload, limits: PayloadLimits = LIMITS) -> Hello | VisitRequest | Refusal:
    """Decode and check a message of the server."""
    found = decode(payload, TO_CLIENT, limits)
    if not isinstance(found, Hello | VisitRequest | Refusal):
        raise WireError(
            f"a server sends a Hello, a VisitRequest or a Refusal, not a {type(found).__name__}", code="wire-unexpected"
        )
    if not isinstance(found, Refusal):
        _same_protocol(found.protocol, "server")
    return found


def read_as_server(payload: Payload, limits: PayloadLimits = LIMITS) -> FromClient:
    """Decode and check a message of a client. Whether a reply answers the request is checked by `check_answers`."""
    found = decode(payload, TO_SERVER, limits)
    if not isinstance(found, FromClient):
        raise WireError(
            f"a client sends a ClientInfo, a VisitReply, a FrozenWanted or a Refusal, not a {type(found).__name__}",
            code="wire-unexpected",
        )
    if not isinstance(found, Refusal):
        _same_protocol(found.protocol, "client")
    return found


def _same_protocol(theirs: int, who: str) -> None:
    if theirs != PROTOCOL:
        raise WireError(
            f"the {who} speaks protocol {theirs}, this side {PROTOCOL}: install the same version of coterie on both",
            code="network-version",
        )


SAMPLES = 1 << 31  # more than any client has
WIDEST = 8  # bytes of a score, at most
OUTLINE = 1 << 14  # bytes of an outline for each answer, at most: some 300 are usual
ROUNDING = 1e-3  # how far off honest arithmetic may be
LARGEST = torch.finfo(torch.float32).max  # a loss beyond is infinite where it is kept
SQUARE = LARGEST**2  # the loss of a regression is in the squared units of its targets
SCORES = 16  # of an objective
LONGEST_NAME = 64  # characters of the name of a score


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


def answer_limits(tasks: Sequence[Task | None], size: int) -> PayloadLimits:
    """How large the answer to these tasks (`for_client`) may be, with models of `size` numbers: what is larger is
    refused before it is decompressed."""
    arrays = [found for task in tasks if task is not None for found in _vectors(task, size) if found is not None]
    outline = OUTLINE * (1 + len(tasks))
    raw = sum(arrays)
    # What cannot be compressed grows a little.
    return PayloadLimits(largest=raw + raw // 1000 + 64 * len(arrays) + outline, arrays=len(arrays), outline=outline)


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
    return len(name) <= LONGEST_NAME and name.isidentifier() and _number(value) and abs(value) <= SQUARE


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
