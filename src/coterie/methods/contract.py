"""What a method is: a frozen dataclass whose fields are its paper's hyper-parameters, and three functions.

A state is a tensor or a frozen dataclass of tensors and numbers; nothing else is needed to resume a run.

A method may carry a `revision` (a class attribute, or a property where only some settings are concerned; 0 if absent).
Raise it with a correction that changes results: outcomes computed before then count as stale (`coterie reproduce`).
It may list options that came `later`, with the value at which a run of before may be resumed: at that value they are
not part of what a checkpoint belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, overload, runtime_checkable

import numpy as np

from coterie.core.cohort import Cohort, Roster
from coterie.core.errors import NoAnswerError
from coterie.core.model import Model
from coterie.core.replies import Described, Evaluated, Fitted, Reply, Scored
from coterie.core.tasks import Describe, Evaluate, Fit, Score, Task

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
