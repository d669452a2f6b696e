"""What a server and a client say to each other: who are you, do this, here it is, I could not."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from coterie.byclient import ByClient
from coterie.client import Answer, EvaluateAnswer, FitAnswer, Moment, ScoreAnswer
from coterie.engines.contract import reason
from coterie.model import Loss, Model
from coterie.network.asked import check_answers, for_client
from coterie.network.wire import LIMITS, Limits, Parcel, WireError, open_up
from coterie.tasks import All, Best, Estimated, Evaluate, Fit, Local, Mix, Own, Pick, Posterior, Row, Score, Task

__all__ = [
    "PROTOCOL",
    "TO_CLIENT",
    "TO_SERVER",
    "About",
    "Errand",
    "Hello",
    "Plan",
    "Refusal",
    "Report",
    "check_answers",
    "check_name",
    "for_client",
    "read_as_client",
    "read_as_server",
]

if TYPE_CHECKING:
    from coterie.config import Named
    from coterie.setup import Shaped

PROTOCOL = 1  # of what is said here; one side's number must be the other's
NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,64}")  # dots alone are names of directories
REASON = 500  # characters
NAMES = 2000  # characters


def check_name(name: str, what: str = "name") -> str:
    """A name as it may stand in a message, a log and a file's name."""
    if not NAME.fullmatch(name):
        raise WireError(
            f"{what}: {name[:80]!r} is not a name: at most 64 letters, digits, '.', '_' and '-', such as hospital-3"
        )
    return name


def _version(number: int | None) -> None:
    if number is not None and not 0 <= number < 1 << 63:
        raise WireError(f"the version of what a client keeps: from 0 to 2^63, not {number}")


def _counts(what: str, least: int, *numbers: int) -> None:
    if not all(least <= n < 1 << 31 for n in numbers):
        raise WireError(f"{what}: from {least} to 2147483647, not {', '.join(map(str, numbers))}")


@dataclass(frozen=True)
class Hello:
    """Server to client: who are you?"""

    protocol: int
    run: str

    def __post_init__(self) -> None:
        check_name(self.run, "run")


@dataclass(frozen=True)
class About:
    """Client to server: who I am and what my data looks like; never data."""

    protocol: int
    name: str
    train: int  # samples
    test: int
    input_shape: tuple[int, ...]
    kind: Literal["classification", "regression"]
    outputs: int  # classes from 0 on, or targets
    version: str  # of coterie
    features: str = ""  # the names of the inputs, where they have names; or a fingerprint, where these are long
    classes: str = ""  # those of the classes

    def __post_init__(self) -> None:
        check_name(self.name)
        if len(self.version) > 64 or not self.version.isprintable():
            raise WireError(f"version: {self.version[:80]!r} is not one")
        for text in (self.features, self.classes):
            if len(text) > NAMES or not text.isprintable():
                raise WireError(f"names are printable, and at most {NAMES} characters together")
        _counts("samples", 0, self.train, self.test)
        _counts("input_shape", 1, *self.input_shape)
        _counts("outputs", 1, self.outputs)


@dataclass(frozen=True)
class Plan:
    """How a client builds the network that is trained."""

    name: str  # in the catalogue, or module:Net
    params: str  # JSON
    input_shape: tuple[int, ...]
    outputs: int
    loss: Loss
    size: int  # P, by which both sides know that they have built the same

    def __post_init__(self) -> None:
        _counts("input_shape", 1, *self.input_shape)
        _counts("outputs, size", 1, self.outputs, self.size)


def plan_of(named: Named, data: Shaped, model: Model) -> Plan:
    """How clients build this model."""
    params = json.dumps(named.params, sort_keys=True)
    return Plan(named.name, params, data.input_shape, data.outputs, model.loss, model.size)


@dataclass(frozen=True, eq=False)
class Errand:
    """Server to client: one visit, as this client gets it (`for_client`)."""

    protocol: int
    run: str
    client: int
    tasks: tuple[Task | None, ...]
    moment: Moment
    keep: bool  # False: a look, after which the client keeps what it kept before
    base: int | None
    since: int
    network: Plan

    def __post_init__(self) -> None:
        check_name(self.run, "run")
        _counts("client, since", 0, self.client, self.since)
        _version(self.base)


@dataclass(frozen=True, eq=False)
class Report:
    """Client to server: an answer per task, None where there was none."""

    protocol: int
    run: str
    client: int
    round: int
    task: int
    answers: tuple[Answer | None, ...]
    wrote: int | None
    afresh: bool

    def __post_init__(self) -> None:
        check_name(self.run, "run")
        _counts("client, round, task", 0, self.client, self.round, self.task)
        _version(self.wrote)


@dataclass(frozen=True)
class Refusal:
    """Client to server: could not, and why, in one line."""

    reason: str

    def __post_init__(self) -> None:
        if len(self.reason) > REASON or not self.reason.isprintable():
            raise WireError(f"a reason is one printable line of at most {REASON} characters")

    @staticmethod
    def of(error: BaseException) -> Refusal:
        """What went wrong, cut to what may be sent."""
        text = "".join(c if c.isprintable() else "?" for c in reason(error))
        return Refusal(text if len(text) <= REASON else text[: REASON - 3] + "...")


TO_CLIENT: tuple[type, ...] = (
    *(Hello, Errand, Plan, Moment, Fit, Score, Evaluate, Local, ByClient),
    *(All, Row, Pick, Best, Mix, Own, Estimated, Posterior),
)
TO_SERVER: tuple[type, ...] = (About, Report, Refusal, FitAnswer, ScoreAnswer, EvaluateAnswer)


def read_as_client(parcel: Parcel, limits: Limits = LIMITS) -> Hello | Errand:
    """What a server sent, checked."""
    found = open_up(parcel, TO_CLIENT, limits)
    if not isinstance(found, Hello | Errand):
        raise WireError(f"a server sends a Hello or an Errand, not a {type(found).__name__}")
    _same_protocol(found.protocol, "server")
    return found


def read_as_server(parcel: Parcel, limits: Limits = LIMITS) -> About | Report | Refusal:
    """What a client sent, checked; whether a report answers what was asked is for `check_answers` to say."""
    found = open_up(parcel, TO_SERVER, limits)
    if not isinstance(found, About | Report | Refusal):
        raise WireError(f"a client sends an About, a Report or a Refusal, not a {type(found).__name__}")
    if not isinstance(found, Refusal):
        _same_protocol(found.protocol, "client")
    return found


def _same_protocol(theirs: int, who: str) -> None:
    if theirs != PROTOCOL:
        raise WireError(
            f"the {who} speaks protocol {theirs}, this side {PROTOCOL}: install the same version of coterie on both"
        )
