"""The round loop."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from coterie.core.compute import one_thread
from coterie.core.errors import AnswersMissingError, CoterieError
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Roster
from coterie.core.tasks import Evaluate, Fit, Fitted
from coterie.engines.contract import WaitsForClients, arithmetic, device_of
from coterie.layers import warnings_of as layers_warn
from coterie.training.assembly import Run
from coterie.training.diagnostics import diagnose, models_of, training
from coterie.training.early_stopping import EarlyStopping
from coterie.training.evaluation import (
    Evaluation,
    NoClientEvaluatedError,
    ScoredSplit,
    admit_joined,
    checked_predictor,
    evaluate,
    evaluate_newcomers,
    score_elsewhere,
)
from coterie.training.events import RoundDone, RunEnded, RunStarted, Snapshot
from coterie.training.result import Result
from coterie.training.retry import NoFurtherAttemptError, do_round
from coterie.training.round import RoundOutcome, wait_for_clients
from coterie.training.sampling import ClientSampler, available, roster_at
from coterie.training.serves import serving_model
from coterie.training.warnings import commonest, diverged, mostly_diverged, warnings_of

State = TypeVar("State")


@dataclass
class Progress(Generic[State]):
    """The state of a run between two rounds."""

    state: State
    done: int  # rounds
    before: Sequence[RoundDone]  # rounds of an earlier process, if the run was resumed
    attempts: list[int]  # how often each round was tried
    stopping: EarlyStopping
    history: list[RoundDone] = field(default_factory=list)  # rounds of this process
    saved: int = 0  # the round of the last checkpoint
    evaluation: Evaluation | None = None  # of the last round, if it was evaluated

    def is_over(self, run: Run[State]) -> bool:
        """Whether there is no further round: all are done, it was stopped early, or a layer allows none."""
        return self.done >= run.settings.rounds or self.stopping.now or run.stack.may_continue() is not None

    def record(self, event: RoundDone, evaluation: Evaluation | None) -> None:
        """A round is over."""
        self.history.append(event)
        self.done, self.evaluation = event.round, evaluation


def train(run: Run[State]) -> Result[State]:
    """Do all rounds and evaluate the clients. The roster is read before every round: clients may come and go."""
    try:
        with one_thread():
            try:
                return _train(run)
            except AnswersMissingError as error:
                # Some may send what is not finite on purpose: that says nothing of the learning rate.
                lost = [one for one in error.missing if one.client not in run.setup.unscored.tolist()]
                if not mostly_diverged(lost):
                    raise
                suspect, noisy = run.stack.suspect(), run.setup.noisy
                raise diverged(error.round, lost, run.clients, run.method, suspect, noisy) from None
    except BaseException as error:  # an interrupt too: the run directory says how the run ended
        if run.directory is not None:
            run.directory.leave(error)
        raise
    finally:
        if run.directory is not None:
            run.directory.close()


def _train(run: Run[State]) -> Result[State]:
    began, settings = time.perf_counter(), run.settings
    sampler = ClientSampler(run.clients, settings, run.setup.cohort_key, run.setup.unscored)
    progress = _start(run, sampler)
    with run.interruption.held():
        while not (progress.is_over(run) or run.interruption.came):
            try:
                _do_and_save(run, progress, sampler)
            except NoFurtherAttemptError:
                if not progress.done:
                    raise
                _save(run, progress)
                break
            except KeyboardInterrupt as why:
                if why is not run.interruption.wish:  # the second one
                    raise
                break  # it was heeded where clients are waited for: no round is under way
        if run.interruption.came and progress.saved < progress.done:
            _save(run, progress)
    evaluated, newcomers = _evaluate_run(run, sampler, progress)
    said: dict[str, Any] = {}
    if run.final_split == "test":
        roster = sampler.to_evaluate(progress.attempts)
        said = run.stack.finish(partial(score_elsewhere, run, progress.state, roster))
    return _finish(run, progress, evaluated, newcomers, time.perf_counter() - began, said)


def _do_and_save(run: Run[State], progress: Progress[State], sampler: ClientSampler) -> None:
    """One round: train, evaluate if it is due, tell, and write a checkpoint if one is due."""
    outcome = do_round(run, progress.state, sampler, progress.done)
    progress.state = outcome.state
    progress.attempts.append(outcome.event.attempts)
    to_evaluate = sampler.to_evaluate(progress.attempts)
    event, evaluation, fresh = _evaluate_round(run, outcome, to_evaluate, progress.stopping)
    event = replace(event, serves=serving_model(checked_predictor(run.method, outcome.state)))
    progress.record(event, evaluation)
    # The line is written before the checkpoint: resuming drops a line that a crash left without one.
    run.notify(replace(event, fresh=fresh))
    if evaluation is None and mostly_diverged(event.unscored):
        raise NoClientEvaluatedError(event.round, event.unscored)  # further rounds would not help
    del outcome, fresh  # clients' models, which a checkpoint does not need
    if progress.is_over(run) or progress.done % run.settings.checkpoint_every == 0:
        _save(run, progress)


def _start(run: Run[State], sampler: ClientSampler) -> Progress[State]:
    """The state to start from: a new one, or that of the last checkpoint."""
    wait_for_clients(run.engine)
    roster, settings = roster_at(run.clients, sampler.roster, 0), run.settings
    state, done = run.method.init(run.model, roster, generator(settings.seed, Purpose.INIT)), 0
    before: Sequence[RoundDone] = ()
    if run.directory is not None:
        engine = run.engine
        state, done = run.directory.begin(state, engine.memory, arithmetic(engine), device_of(engine))
        state = admit_joined(run, state, done, run.directory.joined)
    clients = len(sampler.roster.ids)
    per_round = available("participation", settings.participation, clients)
    name = type(run.method).__name__
    run.notify(RunStarted(name, run.clients.describe(), clients, per_round, settings.rounds, done))
    if run.directory is not None:
        before = run.directory.history(done)
    tried = {event.round: event.attempts for event in before}  # unknown for a round whose line was lost
    attempts = [tried.get(number, 1) for number in range(1, done + 1)]
    return Progress(state, done, before, attempts, EarlyStopping(settings, before), saved=done)


def _evaluate_round(
    run: Run[State], outcome: RoundOutcome[State], roster: Roster, stopping: EarlyStopping
) -> tuple[RoundDone, Evaluation | None, Snapshot | None]:
    """Evaluate a round if it is due: on validation samples if the run has any, else on test samples.

    With validation samples, the test samples are used once, after the last round.
    """
    settings, event, state, t = run.settings, outcome.event, outcome.state, outcome.event.round - 1
    evaluation, fresh = None, None
    try:
        if settings.evaluates(t):
            split: ScoredSplit = "val" if settings.uses_validation else "test"
            evaluation = evaluate(run, state, t, roster, split=split)
            event, fresh = _with_scores(event, evaluation, run.method.predictor(state), outcome.fits)
            stopping.see(event)
        last = event.round == settings.rounds or stopping.now
        if last and settings.uses_validation and run.final_split == "test":
            evaluation = evaluate(run, state, t, roster)
            event = replace(event, summary=evaluation.summary)
    except NoClientEvaluatedError as error:
        event, evaluation = replace(event, unscored=error.missing), None
    return event, evaluation, fresh


def _with_scores(
    event: RoundDone, evaluation: Evaluation, predictor: Evaluate, fits: list[tuple[Fit, Fitted]]
) -> tuple[RoundDone, Snapshot]:
    """A round with the scores of its evaluation, and the details for listeners."""
    found, trained = diagnose(fits, predictor), training(fits)
    tested = evaluation.split == "test"
    event = replace(
        event,
        summary=evaluation.summary if tested else None,
        validation=None if tested else evaluation.summary,
        unscored=evaluation.unscored,
        discrepancy=found.discrepancy,
        clusterability=found.clusterability,
    )
    return event, Snapshot(evaluation.clients, trained[1] if trained else None, models_of(predictor))


def _save(run: Run[State], progress: Progress[State]) -> None:
    """Write a checkpoint: after every `checkpoint_every` rounds, after the last, and before a run is interrupted."""
    if run.directory is None:
        return
    found = progress.evaluation
    tested = found if found is not None and found.split == "test" else None
    run.directory.save(progress.state, run.engine.memory, progress.done, tested)
    progress.saved = progress.done


def _evaluate_run(
    run: Run[State], sampler: ClientSampler, progress: Progress[State]
) -> tuple[Evaluation, Evaluation | None]:
    """The scores after the last round, and those of the newcomers."""
    evaluation, newcomers = progress.evaluation, None
    try:
        if evaluation is None or evaluation.split != run.final_split:  # resumed at the end, or all clients were away
            wait_for_clients(run.engine)
            roster = sampler.to_evaluate(progress.attempts)
            evaluation = evaluate(run, progress.state, progress.done - 1, roster, split=run.final_split)
        if run.final_split == "test":
            newcomers = evaluate_newcomers(run, progress.state, sampler.newcomers)
    except NoClientEvaluatedError as error:
        raise error if mostly_diverged(error.missing) else _not_evaluated(run, error) from None
    if run.directory is not None and run.final_split == "test":
        run.directory.complete(progress.state, run.engine.memory, progress.done, evaluation, newcomers)
    return evaluation, newcomers


def _not_evaluated(run: Run[State], error: NoClientEvaluatedError) -> CoterieError:
    """After the last round: what was trained is not lost."""
    if run.directory is None:
        return error
    saved = f"{error}. All rounds are done and saved in {run.directory.path}"
    if not isinstance(run.engine, WaitsForClients):  # a simulation: the clients were there, so waiting does not help
        return CoterieError(saved, code=error.code)
    return CoterieError(
        f"{saved}; evaluate them when clients are connected (--resume {run.directory.path}, resume=True)",
        code="evaluation-empty",
    )


def _finish(
    run: Run[State],
    progress: Progress[State],
    evaluated: Evaluation,
    newcomers: Evaluation | None,
    seconds: float,
    said: Mapping[str, Any],
) -> Result[State]:
    history = [*progress.before, *progress.history]
    usual = commonest(run.clients, evaluated.clients, run.settings, evaluated.split)
    warnings = warnings_of(run.method, evaluated.summary, history, run.clients, usual, progress.state)
    warnings = (*warnings, *layers_warn(run.settings, history, run.clients))
    admitted = None if newcomers is None else newcomers.clients
    run.notify(RunEnded(evaluated.clients, evaluated.summary, seconds, admitted, warnings, evaluated.scored_on, said))
    return Result(
        *(run.method, run.model, progress.state, tuple(progress.history), evaluated.clients, evaluated.summary),
        *(seconds, run.clients, run.settings, run.engine.memory, newcomers, evaluated.state),
        run_dir=None if run.directory is None else run.directory.path,
        attack=said.get("attack"),
        usual=usual,
    )
