"""One attempt at a round: draw a cohort, and let the method ask it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Generic, TypeVar

from coterie.core.errors import AnswersMissingError, CoterieError, NoAnswerError
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.core.tasks import Fit, Fitted
from coterie.engines.contract import Engine, WaitsForClients
from coterie.layers.contract import Round
from coterie.training.ask import RoundAsk
from coterie.training.events import RoundDone
from coterie.training.job import Job
from coterie.training.sampling import ClientSampler, roster_at

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class RoundOutcome(Generic[State]):
    """A finished round: the method's new state, what is reported, and the fits of its last visit that had any."""

    state: State
    event: RoundDone
    fits: list[tuple[Fit, Fitted]]


class Attempt(Generic[State]):
    """An attempt at round t, counted from 0 as attempts are."""

    def __init__(self, job: Job[State], sampler: ClientSampler, t: int, number: int) -> None:
        wait_for_clients(job.engine)
        self._job, self.roster = job, roster_at(job.clients, sampler.roster, t)
        ids, seed = sampler.cohort(t, number), job.settings.seed
        self.cohort = Cohort(ids, t, self.roster, generator(seed, Purpose.METHOD, t, number))
        self.ask = RoundAsk(job.stack, ids, seed, t, names=sampler.names)
        self._round = Round(t, number, ids, self.roster, sampler.names, seed, job.model, job.engine)

    def play(self, state: State, began: float) -> RoundOutcome[State]:
        """The round. If too few answer, an error: then nothing has changed."""
        job, working = self._job, self._job.stack.seconds
        job.engine.memory.begin()
        try:
            job.stack.begin(self._round)
            new = self._asked(state)
        except AnswersMissingError as error:
            job.engine.memory.undo()
            job.stack.abort(self._round, error)
            raise
        said = job.stack.commit(self._round, state, new)
        missing, asked = self.ask.lost, len(self.ask.asked)
        event = RoundDone(
            *(self._round.number + 1, asked, asked - len(missing), missing, self._round.attempt + 1),
            *(time.perf_counter() - began, None),
            client_seconds=job.stack.seconds - working,
            counted=tuple(self.cohort.counted),
            layers=said,
        )
        return RoundOutcome(new, event, self.ask.fitted)

    def _asked(self, state: State) -> State:
        """The method's round."""
        if not len(self.cohort.ids) and not self._job.setup.asks_nobody:
            return state  # nobody was drawn (Poisson sampling)
        try:
            new = self._job.method.round(state, self.cohort, self.ask)
        except NoAnswerError:  # enough have answered (that may be none), but without any answer nothing changes
            return state
        if new is None:
            raise CoterieError(
                f"method: the round of {type(self._job.method).__name__} returned None; return the new state",
                code="method-invalid",
            )
        return new


def wait_for_clients(engine: Engine) -> None:
    """Over a network: wait until enough clients are connected."""
    if isinstance(engine, WaitsForClients):
        engine.wait()
