"""A round is repeated with other clients while too few answer."""

from __future__ import annotations

import time
from typing import TypeVar

from coterie.core.errors import CoterieError, QuorumError
from coterie.training.job import Job
from coterie.training.round import Attempt, RoundOutcome
from coterie.training.sampling import ClientSampler
from coterie.training.warnings import mostly_diverged

State = TypeVar("State")


class NoFurtherAttemptError(CoterieError):
    """The round did not stand, and a layer allows no further attempt."""


def do_round(job: Job[State], state: State, sampler: ClientSampler, t: int) -> RoundOutcome[State]:
    """Round t, counted from 0, in as many attempts as it takes and the settings allow."""
    began, retries = time.perf_counter(), job.settings.retries
    for number in range(retries + 1):
        attempt = Attempt(job, sampler, t, number)
        try:
            return attempt.play(state, began)
        except QuorumError as error:
            if number < retries and (why := job.stack.may_continue()) is not None:
                raise NoFurtherAttemptError(str(why), code=why.code) from None
            missing, ask = tuple(attempt.ask.missing.values()), attempt.ask
            # If all clients were asked already, the same ones would diverge again.
            again = len(attempt.cohort.ids) < len(attempt.roster.ids) or not mostly_diverged(missing)
            if number == retries or not again:
                tries = f" (tried {number + 1} times)" if number else ""
                some_answered = len(missing) < len(ask.asked)  # without any answer, no quorum helps
                hint = f". {error.advice}" if missing and some_answered else ""
                raise QuorumError(f"{error}{tries}{hint}", t + 1, missing) from None
    raise AssertionError("unreachable")
