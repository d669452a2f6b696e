"""What a method is: a frozen dataclass whose fields are its paper's hyper-parameters, and three functions.

A state is a tensor or a frozen dataclass of tensors and numbers; nothing else is needed to resume a run.

A method may carry a `revision` (a class attribute, or a property where only some settings are concerned; 0 if absent).
Raise it with a correction that changes results: outcomes computed before then count as stale (`python -m papers`).
It may list options that came `later`, with the value at which a run of before may be resumed: at that value they are
not part of what a checkpoint belongs to.

What the rest of the library needs to know of a method, the method says in class attributes (or properties):
`releases`, what a client gives away beside means of models, or why the method is refused with privacy;
`places_by`, "labels" (the default) or "inputs": whether a newcomer can be placed by data without labels;
`shares_no_model`, why nobody can be given a model by it;
`no_server_optimizer`, why `server_optimizer` cannot go around it.
A state may have `forget(ids)`: itself without models that belonged to these clients alone. The rows of clients in its
tables are taken out by who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

import numpy as np

from coterie.core.errors import NoAnswerError
from coterie.core.model import Model
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import Describe, Described, Evaluate, Evaluated, Fit, Fitted, Reply, Score, Scored, Task

State = TypeVar("State")


class Ask(Protocol):
    """Ask the cohort (or a task's own `on`); a list of tasks is ONE visit, so every tensor travels once.

    Raises NoAnswerError if no client answers any of the tasks; a round that does not catch it changes no state.
    """

    @overload
    def __call__(self, task: Fit, /) -> Fitted: ...
    @overload
    def __call__(self, task: Score, /) -> Scored: ...
    @overload
    def __call__(self, task: Evaluate, /) -> Evaluated: ...
    @overload
    def __call__(self, task: Describe, /) -> Described: ...
    @overload
    def __call__(self, task: list[Fit], /) -> list[Fitted]: ...
    @overload
    def __call__(self, task: Sequence[Task], /) -> list[Reply]: ...


class Method(Protocol[State]):
    """A server-side program that asks clients questions."""

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> State:
        """The state before the first round."""

    def round(self, state: State, cohort: Cohort, ask: Ask) -> State:
        """The paper's loop body."""

    def predictor(self, state: State) -> Evaluate:
        """How a client that the state knows predicts."""


@runtime_checkable
class Admits(Protocol[State]):
    """A method with a rule for clients that its state does not know yet; others predict for anyone as they are."""

    def admit(self, state: State, cohort: Cohort, ask: Ask) -> State:
        """A state that includes these clients, without retraining."""


def admitted(method: object, state: State, cohort: Cohort, ask: Ask) -> State:
    """The state that includes these clients; unchanged if the method has no rule for them or none answers."""
    if not isinstance(method, Admits):
        return state
    try:
        known: State = method.admit(state, cohort, ask)
    except NoAnswerError:
        return state
    return known


def never(*_: int) -> int:
    """The clustering signal of a client is not used."""
    return 0


def once(*_: int) -> int:
    """It is used once: in the first clustering, or when a client that was not there joins."""
    return 1


@dataclass(frozen=True)
class RefusedValue:
    """A value of a method's setting that is not accounted for."""

    value: Any
    why: str
    write: str  # what to write instead
    then: str = ""  # what that changes


@dataclass(frozen=True)
class Releases:
    """What a method releases of a client.

    means: mean models per round to which a client's update contributes (once to each; whether its own choice of a
    cluster decides to which row makes no difference to the sum's sensitivity).
    signals: how often single sketches or votes of a client are used to cluster, in so many rounds, and where everyone
    takes part in all of them or not.
    models: whether the clients' models are looked at one by one, as sketches. sketches: whether it asks for sketches.
    votes: whether it asks which center fits a client best. descriptions: whether it asks what a client's data is like.
    refused: settings that release more than this.
    """

    means: int = 1
    signals: Callable[[int, bool], int] = never
    models: bool = False
    sketches: bool = False
    votes: bool = False
    descriptions: bool = False
    refused: Mapping[str, RefusedValue] = field(default_factory=dict)

    @property
    def any_signal(self) -> bool:
        """Whether there is a clustering signal beside the means."""
        return self.models or self.sketches or self.votes or self.descriptions


def releases_of(method: object) -> Releases | str:
    """What a method has said that it releases, or why that is not accounted for.

    An account is of exactly the class that gives it, for a subclass may do more; a reason is of subclasses too.
    """
    kind = type(method)
    own: Releases | str | None = vars(kind).get("releases")
    if isinstance(own, Releases):
        return own
    said = (vars(base).get("releases") for base in kind.__mro__)
    why = next((one for one in said if isinstance(one, str)), None)
    return why or "nobody has said what it releases of a client (a class attribute releases = Releases(...))"
