"""One round: draw a cohort, let the method ask it, and try again with other clients if too few answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from coterie.clustering.aggregators import RobustMean
from coterie.core.aggregation import Defence
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError, NoAnswerError, QuorumError
from coterie.core.replies import Fitted
from coterie.core.seeds import Purpose, generator
from coterie.core.tasks import Fit
from coterie.engines.contract import Engine, WaitsForClients
from coterie.training.ask import RoundAsk
from coterie.training.divergence import mostly_diverged
from coterie.training.events import RoundDone
from coterie.training.job import Job
from coterie.training.sampling import ClientSampler

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class RoundOutcome(Generic[State]):
    """A finished round: the method's new state, what is reported, and the fits of its last visit that had any."""

    state: State
    event: RoundDone
    fits: list[tuple[Fit, Fitted]]


def do_round(
    job: Job[State], state: State, sampler: ClientSampler, t: int, largest_update: float
) -> RoundOutcome[State]:
    """Round t, counted from 0. It is repeated with other clients while fewer than the quorum answer.

    largest_update: the largest median norm of earlier rounds' updates, see `RoundAsk`.
    """
    began, settings = time.perf_counter(), job.settings
    for attempt in range(settings.retries + 1):
        wait_for_clients(job.engine)
        roster, ids = sampler.roster, sampler.cohort(t, attempt)
        cohort = Cohort(ids, t, roster, generator(settings.seed, Purpose.METHOD, t, attempt))
        robust = None if settings.aggregator is None else RobustMean(settings.aggregator)
        ask = RoundAsk(
            *(job.engine, ids, settings.seed, t),
            quorum=settings.quorum,
            gone=sampler.dropouts(ids, t, attempt),
            update_bound=settings.update_bound,
            scale=largest_update,
            names=sampler.names,
            aggregator=robust,
            rule=settings.aggregator,
        )
        job.engine.memory.begin()
        try:
            done = _outcome(_asked(job, state, cohort, ask), cohort, ask, attempt, time.perf_counter() - began)
            return done if robust is None else replace(done, event=replace(done.event, defence=_defence(ask, robust)))
        except QuorumError as error:
            job.engine.memory.undo()
            missing = tuple(ask.missing.values())
            # If all clients were asked already, the same ones would diverge again.
            again = len(ids) < len(roster.ids) or not mostly_diverged(missing)
            if attempt == settings.retries or not again:
                raise _final_quorum_error(error, ask, t, attempt) from None
    raise AssertionError("unreachable")


def _asked(job: Job[State], state: State, cohort: Cohort, ask: RoundAsk) -> State:
    """The method's round."""
    if not len(cohort.ids):
        raise QuorumError(f"round {cohort.round + 1}: no client is connected")
    try:
        new = job.method.round(state, cohort, ask)
    except NoAnswerError:  # the quorum is met (it may be 0), but without any answer nothing changes
        return state
    if new is None:
        raise CoterieError(
            f"method: the round of {type(job.method).__name__} returned None; return the new state",
            code="method-invalid",
        )
    return new


def _outcome(state: State, cohort: Cohort, ask: RoundAsk, attempt: int, seconds: float) -> RoundOutcome[State]:
    missing, asked = ask.lost, len(ask.asked)
    event = RoundDone(
        *(cohort.round + 1, asked, asked - len(missing), missing, attempt + 1, seconds, None),
        bytes_down=ask.sent,
        bytes_up=ask.received,
        client_seconds=ask.seconds,
        update_norm=ask.update_norm,
        rejected=tuple(sorted(ask.rejected)),
        counted=tuple(cohort.counted),
    )
    return RoundOutcome(state, event, ask.fitted)


def _defence(ask: RoundAsk, robust: RobustMean) -> Defence:
    """What the robust aggregator did, for the round's record."""
    small = tuple(sorted(robust.small.items()))
    return Defence(tuple(sorted(ask.clipped)), tuple(sorted(ask.quarantined)), small)


def _final_quorum_error(error: QuorumError, ask: RoundAsk, t: int, attempt: int) -> QuorumError:
    tries = f" (tried {attempt + 1} times)" if attempt else ""
    some_answered = len(ask.missing) < len(ask.asked)  # without any answer, no quorum helps
    hint = ". With a lower quorum the run continues without them." if ask.missing and some_answered else ""
    return QuorumError(f"{error}{tries}{hint}", t + 1, tuple(ask.missing.values()))


def wait_for_clients(engine: Engine) -> None:
    """Over a network: wait until enough clients are connected."""
    if isinstance(engine, WaitsForClients):
        engine.wait()
