"""The messages between server and client: Hello and ClientInfo, VisitRequest and VisitReply, or a Refusal of either.

What is frozen of a network is not sent with its models. A client builds the network and compares the hash; if it
differs, the client answers a VisitRequest with FrozenWanted, and gets the request again with the frozen part, once.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from coterie.network.protocol.per_client import check_answers, for_client
from coterie.network.protocol.wire import LIMITS, Limits, Payload, WireError, decode
from torch import Tensor

from coterie.client.answers import Answer, DescribeAnswer, EvaluateAnswer, FitAnswer, Moment, ScoreAnswer
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Best, Estimated, Mix, Own, Personal, Pick, Posterior, Row
from coterie.core.tables import ByClient
from coterie.core.tasks import Describe, Evaluate, Fit, Score, Task
from coterie.engines.contract import reason

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

if TYPE_CHECKING:
    from coterie.core.model import Shaped
    from coterie.training.config import Named

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


def read_as_client(payload: Payload, limits: Limits = LIMITS) -> Hello | VisitRequest | Refusal:
    """Decode and check a message of the server."""
    found = decode(payload, TO_CLIENT, limits)
    if not isinstance(found, Hello | VisitRequest | Refusal):
        raise WireError(
            f"a server sends a Hello, a VisitRequest or a Refusal, not a {type(found).__name__}", code="wire-unexpected"
        )
    if not isinstance(found, Refusal):
        _same_protocol(found.protocol, "server")
    return found


def read_as_server(payload: Payload, limits: Limits = LIMITS) -> FromClient:
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
