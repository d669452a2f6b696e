"""The driver: the round loop, and the one call that does everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from numpy.typing import ArrayLike
from torch import nn

from coterie.asking import Asker
from coterie.attendance import Attendance, audience, drop, present, sample
from coterie.clients import Clients
from coterie.data.federation import Federation
from coterie.diagnosis import diagnose, models_of, training
from coterie.engines.contract import Engine, Waits
from coterie.errors import CoterieError, QuorumError
from coterie.evaluation import Evaluation, NobodyError, evaluate, meet
from coterie.events import Listener, RoundDone, RunEnded, RunStarted, Snapshot
from coterie.methods.contract import Method
from coterie.model import Model
from coterie.result import Result
from coterie.seeds import Purpose, generator
from coterie.settings import Settings
from coterie.setup import as_method, as_model, check, chosen, local_of, make_engine
from coterie.tasks import Cohort, Evaluate, Fit, Fitted, Roster
from coterie.threads import one_thread
from coterie.zoo import Architecture

State = TypeVar("State")


def run(
    method: str | Method[Any],
    federation: Federation | Sequence[tuple[ArrayLike, ...]],
    model: str | Model | Architecture | nn.Module | Callable[[], nn.Module] = "mlp",
    *,
    rounds: int = 30,
    participation: int | float = 1.0,
    seed: int = 0,
    engine: Literal["sequential", "workers", "batched", "ray", "auto"] | Engine = "sequential",
    workers: int | None = None,
    evaluate_every: int = 1,
    evaluate_last: int = 1,
    evaluate_on: int | float = 1.0,
    evaluate_whom: Literal["all", "met"] = "all",
    weigh_clients: Literal["test", "train", "equal"] = "test",
    quorum: float = 0.5,
    retries: int = 2,
    dropout: float = 0.0,
    newcomers: float = 0.0,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int = 5,
    listeners: Sequence[Listener] = (),
) -> Result[Any]:
    """Train a federation with a method and evaluate every client.

    method: an object, coterie.WeCFL(k=4), or a name (`coterie methods`) for its defaults.
    federation: a Federation, or a list of (x, y) per client.
    model: an nn.Module class, a function that builds one, an instance as a blueprint, a name
        (`coterie models`) or, with parameters, `coterie.zoo.MLP(hidden=(64,))`.
    rounds, seed: the same seed gives the same bits.
    participation: clients per round, a share (0.1; 1.0 is all) or a count (20; 1 is one).
    engine, workers: "sequential" (the reference); "workers", a process per core (or that many); "batched", many clients
    as one computation, on as many workers; "auto", the fastest of these here, found out by trying; or "ray", the cores
    of the Ray cluster that RAY_ADDRESS names (or that this process has joined).
    evaluate_every, evaluate_last: rounds between evaluations; how many of the last rounds are all evaluated.
    evaluate_on: a share or a count of the clients evaluated.
    evaluate_whom: of "all" clients, or only of those "met" (drawn for a round) so far.
    weigh_clients: how clients count in accuracy and macro-F1: by "test" size, "train" size or "equal".
    quorum, retries: the share of asked clients that must answer, and how often a round is repeated where they do not.
    dropout: simulated, the chance that a client asked does not answer.
    newcomers: the share of the clients that has no part in training and is taken in after it: result.newcomers.
    out, resume, checkpoint_every: a directory for the log, the assignments and the checkpoints; with resume=True and
    the same arguments the run goes on from the last checkpoint there.
    listeners: functions that are told every event (RunStarted, RoundDone, RunEnded).
    """
    from coterie.setup import settings_from
    from coterie.store import RunDirectory

    settings = settings_from(
        Settings,
        rounds=rounds,
        participation=participation,
        seed=seed,
        evaluate_every=evaluate_every,
        evaluate_last=evaluate_last,
        evaluate_on=evaluate_on,
        evaluate_whom=evaluate_whom,
        weigh_clients=weigh_clients,
        quorum=quorum,
        retries=retries,
        dropout=dropout,
        newcomers=newcomers,
        checkpoint_every=checkpoint_every,
    )
    federation = Federation.of(federation)
    the_method: Method[Any] = as_method(method)
    the_model = as_model(model, federation)
    check(the_model, federation, settings)
    if resume and out is None:
        raise CoterieError("resume: which run? Give its directory as out=...")
    store = None if out is None else RunDirectory(Path(out), the_method, the_model, federation, settings, resume)
    if isinstance(engine, str):
        with one_thread():
            choice = chosen(engine, workers, the_model, federation, local_of(the_method), settings)
        used, many = (engine, workers) if choice is None else (choice.name, choice.workers)
        making = make_engine(used, the_model, federation, many)
    else:
        making = make_engine(engine, the_model, federation, workers)
    with making as the_engine:
        return drive(the_method, the_model, federation, settings, the_engine, store, listeners)


def drive(
    method: Method[State],
    model: Model,
    clients: Clients,
    settings: Settings,
    engine: Engine,
    store: Any = None,
    listeners: Sequence[Listener] = (),
) -> Result[State]:
    """The round loop. Who is there is read anew before every round: clients may come and go."""
    try:
        with one_thread():
            return _drive(method, model, clients, settings, engine, store, listeners)
    finally:
        if store is not None:
            store.close()


def _drive(
    method: Method[State],
    model: Model,
    clients: Clients,
    settings: Settings,
    engine: Engine,
    store: Any,
    listeners: Sequence[Listener],
) -> Result[State]:
    there, began = Attendance(clients, settings), time.perf_counter()
    history: list[RoundDone] = []
    _wait(engine)
    state, done = method.init(model, there.roster, generator(settings.seed, Purpose.INIT)), 0
    if store is not None:
        state, done = store.begin(state, engine.memory)
        listeners = [store.listen, *listeners]
    _tell(listeners, _start(method, clients, settings, there.roster, done))
    evaluated: Evaluation | None = None
    attempts = [1] * done if store is None else store.attempts(done)
    for t in range(done, settings.rounds):
        state, event, fits = _round(method, state, there, settings, engine, t)
        attempts.append(event.attempts)
        fresh = None
        if settings.looks(t):
            try:
                whom = audience(there.roster, settings, attempts)
                evaluated = evaluate(method, state, clients, settings, engine, t, whom)
                event, fresh = _looked(event, evaluated, method.predictor(state), fits)
            except NobodyError as error:
                event, evaluated = replace(event, unscored=error.unscored), None
        history.append(event)
        # The line before the checkpoint: a crash between the two leaves a line too many, which resuming drops.
        _tell(listeners, replace(event, fresh=fresh))
        del fits, fresh  # clients' models, which the next round has no use for
        last = t + 1 == settings.rounds
        if store is not None and (last or (t + 1) % settings.checkpoint_every == 0):
            store.save(state, engine.memory, t + 1)
    try:
        if evaluated is None:  # resumed with nothing left to do, or all were away: once more, now that it is saved
            _wait(engine)
            whom = audience(there.roster, settings, attempts)
            evaluated = evaluate(method, state, clients, settings, engine, settings.rounds - 1, whom)
        newcomers = meet(method, state, clients, settings, engine, there.kept_back)
    except NobodyError as error:
        raise _unjudged(error, store, engine) from None
    seconds = time.perf_counter() - began
    come = None if newcomers is None else newcomers.clients
    _tell(listeners, RunEnded(evaluated.clients, evaluated.summary, seconds, come))
    return Result(
        *(method, model, state, tuple(history), evaluated.clients, evaluated.summary),
        *(seconds, clients, settings, engine.memory, newcomers, evaluated.state),
        run_dir=None if store is None else store.path,
    )


def _start(method: object, clients: Clients, settings: Settings, roster: Roster, done: int) -> RunStarted:
    many = len(roster.ids)
    per_round = present("participation", settings.participation, many)
    return RunStarted(type(method).__name__, clients.describe(), many, per_round, settings.rounds, done)


def _looked(
    event: RoundDone, evaluated: Evaluation, after: Evaluate, fits: list[tuple[Fit, Fitted]]
) -> tuple[RoundDone, Snapshot]:
    """A round with what its evaluation found."""
    found, trained = diagnose(fits, after), training(fits)
    event = replace(
        event,
        summary=evaluated.summary,
        unscored=evaluated.unscored,
        discrepancy=found.discrepancy,
        clusterability=found.clusterability,
    )
    return event, Snapshot(evaluated.clients, trained[1] if trained else None, models_of(after))


def _unjudged(error: NobodyError, store: Any, engine: Engine) -> CoterieError:
    """After the last round: what was trained is not lost with those who should have judged it."""
    if store is None:
        return error
    saved = f"{error}. All rounds are done and saved in {store.path}"
    if not isinstance(engine, Waits):  # they were there, so that coming back later helps nobody
        return CoterieError(saved)
    again = f"once clients are there, have them evaluated (--resume {store.path}, resume=True)"
    return CoterieError(f"{saved}; {again}")


def _round(
    method: Method[State], state: State, there: Attendance, settings: Settings, engine: Engine, t: int
) -> tuple[State, RoundDone, list[tuple[Fit, Fitted]]]:
    """One round, repeated with other clients while too few answer; and the trainings of its last visit."""
    began = time.perf_counter()
    for attempt in range(settings.retries + 1):
        _wait(engine)
        roster = there.roster
        ids = sample(roster, settings, t, attempt)
        cohort = Cohort(ids, t, roster, generator(settings.seed, Purpose.METHOD, t, attempt))
        gone = drop(ids, settings, t, attempt)
        ask = Asker(engine, ids, settings.seed, t, quorum=settings.quorum, gone=gone)
        engine.memory.begin()
        try:
            if not len(ids):
                raise QuorumError(f"round {t + 1}: no client is there to be asked")
            state = method.round(state, cohort, ask)
            if state is None:
                raise CoterieError(f"method: the round of {type(method).__name__} returned None; return the new state")
        except QuorumError as error:
            engine.memory.undo()
            if attempt == settings.retries:
                tries = f" (tried {attempt + 1} times)" if attempt else ""
                hint = ". A lower quorum lets the run go on without them." if ask.missing else ""
                raise QuorumError(f"{error}{tries}{hint}") from None
            continue
        missing = tuple(ask.missing[c] for c in sorted(ask.missing))
        seconds = time.perf_counter() - began
        asked = len(ask.asked)
        event = RoundDone(
            *(t + 1, asked, asked - len(missing), missing, attempt + 1, seconds, None),
            bytes_down=ask.sent,
            bytes_up=ask.received,
            client_seconds=ask.seconds,
        )
        return state, event, ask.fitted
    raise AssertionError("unreachable")


def _wait(engine: Engine) -> None:
    if isinstance(engine, Waits):
        engine.wait()


def _tell(listeners: Sequence[Listener], event: RunStarted | RoundDone | RunEnded) -> None:
    for listener in listeners:
        listener(event)
