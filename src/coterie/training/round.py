"""One round: draw a cohort, let the method ask it, and try again with other clients if too few answer."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from torch import Tensor

from coterie.clustering.aggregators import RobustMean
from coterie.clustering.server_optimizers import Moments, OptimizedMean
from coterie.core.aggregation import Aggregator, Defence
from coterie.core.codec import pack
from coterie.core.errors import CoterieError, NoAnswerError, QuorumError
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.core.tasks import Fit, Fitted
from coterie.engines.contract import Engine, WaitsForClients
from coterie.training.ask import RoundAsk
from coterie.training.events import RoundDone
from coterie.training.job import Job
from coterie.training.privacy.ledger import BudgetSpentError, Ledger
from coterie.training.privacy.private_ask import PrivateAsk
from coterie.training.sampling import ClientSampler, roster_at
from coterie.training.warnings import mostly_diverged

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class RoundOutcome(Generic[State]):
    """A finished round: the method's new state, what is reported, and the fits of its last visit that had any."""

    state: State
    event: RoundDone
    fits: list[tuple[Fit, Fitted]]
    ledger: Ledger | None = None  # where the run has privacy
    moments: Moments = field(default_factory=dict)  # where it has a server optimizer


def do_round(
    job: Job[State],
    state: State,
    sampler: ClientSampler,
    t: int,
    largest_update: float,
    ledger: Ledger | None = None,
    moments: Moments | None = None,
    before: Collection[int] = (),
) -> RoundOutcome[State]:
    """Round t, counted from 0. It is repeated with other clients while fewer than the quorum answer.

    largest_update: the largest median norm of earlier rounds' updates, see `RoundAsk`. ledger: what privacy has cost
    so far, where the run has any; then updates are clipped, not screened. moments: of the server optimizer. before:
    clients that were rejected or quarantined in earlier rounds.
    """
    began, settings = time.perf_counter(), job.settings
    for attempt in range(settings.retries + 1):
        wait_for_clients(job.engine)
        roster, ids = roster_at(job.clients, sampler.roster, t), sampler.cohort(t, attempt)
        cohort = Cohort(ids, t, roster, generator(settings.seed, Purpose.METHOD, t, attempt))
        robust = None if settings.aggregator is None else RobustMean(settings.aggregator)
        means = Means(job, moments or {})
        bound = settings.update_bound if ledger is None else 0.0
        ask = _ask_of(job, cohort, sampler, attempt, bound, largest_update, means.around(robust), before)
        private = None if ledger is None else PrivateAsk(ask, ledger, t, attempt, means.around)
        job.engine.memory.begin()
        try:
            new = _asked(job, state, cohort, private or ask)
            done = _outcome(new, cohort, ask, attempt, time.perf_counter() - began, means.moments_of(new))
            if private is not None:
                return _private_outcome(done, private.ledger, roster.ids)
            return done if robust is None else replace(done, event=replace(done.event, defence=_defence(ask, robust)))
        except QuorumError as error:
            job.engine.memory.undo()
            if private is not None:
                private.given_up()
                ledger = private.ledger
                if attempt < settings.retries and not ledger.allows_a_round:
                    raise BudgetSpentError(ledger, t + 1) from None
            missing = tuple(ask.missing.values())
            # If all clients were asked already, the same ones would diverge again.
            again = len(ids) < len(roster.ids) or not mostly_diverged(missing)
            if attempt == settings.retries or not again:
                raise _final_quorum_error(error, ask, t, attempt) from None
    raise AssertionError("unreachable")


class Means:
    """How the means of one attempt at a round are taken, as far as a server optimizer has to do with it."""

    def __init__(self, job: Job[State], moments: Moments) -> None:
        self._job, self._moments = job, moments
        self._optimized: OptimizedMean | None = None

    def around(self, inner: Aggregator | None) -> Aggregator | None:
        """A mean with the run's server optimizer around it, if it has one."""
        rule, model = self._job.settings.server_optimizer, self._job.model
        if rule is None:
            return inner
        self._optimized = OptimizedMean(rule, self._moments, model.parameters, inner)
        return self._optimized

    def moments_of(self, state: object) -> Moments:
        """The moments of the models in a state."""
        if self._optimized is None:
            return {}
        models = (t for t in pack(state)[1] if t.ndim and t.shape[-1] == self._job.model.size)
        return self._optimized.kept(t for t in models if t.is_floating_point())


def _ask_of(
    job: Job[State],
    cohort: Cohort,
    sampler: ClientSampler,
    attempt: int,
    update_bound: float,
    largest_update: float,
    aggregator: Aggregator | None,
    before: Collection[int],
) -> RoundAsk:
    """What carries the method's questions to the cohort."""
    return RoundAsk(
        *(job.engine, cohort.ids, job.settings.seed, cohort.round),
        quorum=job.settings.quorum,
        gone=sampler.dropouts(cohort.ids, cohort.round, attempt),
        update_bound=update_bound,
        scale=largest_update,
        names=sampler.names,
        aggregator=aggregator,
        rule=job.settings.aggregator,
        before=before,
    )


def _private_outcome(found: RoundOutcome[State], ledger: Ledger, ids: Tensor) -> RoundOutcome[State]:
    """What may be told of a round with privacy: nothing that single answers show."""
    event = replace(found.event, privacy=ledger.spent(ids))
    return RoundOutcome(found.state, event, [], ledger, found.moments)


def _asked(job: Job[State], state: State, cohort: Cohort, ask: RoundAsk | PrivateAsk) -> State:
    """The method's round."""
    if not len(cohort.roster.ids):
        raise QuorumError(f"round {cohort.round + 1}: no client is connected")
    if not len(cohort.ids) and not (job.privacy is not None and job.privacy.amplified):
        return state  # nobody was drawn (Poisson sampling)
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


def _outcome(
    state: State, cohort: Cohort, ask: RoundAsk, attempt: int, seconds: float, moments: Moments
) -> RoundOutcome[State]:
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
    return RoundOutcome(state, event, ask.fitted, moments=moments)


def _defence(ask: RoundAsk, robust: RobustMean) -> Defence:
    """What the robust aggregator did, for the round's record."""
    small = tuple(sorted(robust.small.items()))
    return Defence(tuple(sorted(ask.clipped)), tuple(sorted(ask.quarantined)), small)


def _final_quorum_error(error: QuorumError, ask: RoundAsk, t: int, attempt: int) -> QuorumError:
    tries = f" (tried {attempt + 1} times)" if attempt else ""
    some_answered = len(ask.missing) < len(ask.asked)  # without any answer, no quorum helps
    hint = f". {error.advice}" if ask.missing and some_answered else ""
    return QuorumError(f"{error}{tries}{hint}", t + 1, tuple(ask.missing.values()))


def wait_for_clients(engine: Engine) -> None:
    """Over a network: wait until enough clients are connected."""
    if isinstance(engine, WaitsForClients):
        engine.wait()
