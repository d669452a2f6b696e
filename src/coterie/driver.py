"""The driver: the round loop, and the one call that does everything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import ArrayLike, NDArray
from pydantic import NonNegativeInt, PositiveInt, Strict
from pydantic.dataclasses import dataclass as validated
from torch import Tensor, nn

from coterie.asking import Asker
from coterie.data.federation import Federation
from coterie.domains import STRICT, Share, ShareBelowOne
from coterie.engines.contract import Engine, Missing
from coterie.errors import CoterieError, QuorumError
from coterie.events import Listener, RoundDone, RunEnded, RunStarted
from coterie.memory import Memory
from coterie.methods.contract import Admits, Method
from coterie.metrics import Summary, summarise
from coterie.model import Model
from coterie.seeds import Purpose, generator
from coterie.setup import as_method, as_model, check, chosen, local_of, make_engine
from coterie.tasks import Cohort, Evaluated, Roster

if TYPE_CHECKING:
    from coterie.serving import Served

State = TypeVar("State")
Participation = Annotated[int, Strict(), Ge(1)] | Annotated[float, Gt(0), Le(1)]


@validated(frozen=True, config=STRICT)
class Settings:
    """How a run goes, whatever the method."""

    rounds: PositiveInt = 30
    participation: Participation = 1.0  # a share of the clients (0.1, 1.0) or a count (20) per round
    seed: NonNegativeInt = 0
    evaluate_every: PositiveInt = 1  # rounds; the last one is always evaluated
    evaluate_on: Participation = 1.0  # a share or a count of the clients, drawn once for the whole run
    weigh_clients: Literal["test", "train", "equal"] = "test"  # in accuracy and macro-F1 over clients
    quorum: Share = 0.5  # share of the asked clients that must answer
    retries: NonNegativeInt = 2  # how often a round below the quorum is repeated with other clients
    dropout: ShareBelowOne = 0.0  # simulated: the chance that a client asked does not answer
    newcomers: ShareBelowOne = 0.0  # share of the clients kept from training, and taken in by the method after it
    checkpoint_every: PositiveInt = 5  # rounds, where the run has a directory; the last one always

    def per_round(self, clients: int) -> int:
        """How many clients take part in a round."""
        return _how_many("participation", self.participation, clients)

    def evaluated(self, clients: int) -> int:
        """How many clients are evaluated."""
        return _how_many("evaluate_on", self.evaluate_on, clients)

    def kept_back(self, clients: int) -> int:
        """How many clients are newcomers."""
        many = round(self.newcomers * clients)
        if many >= clients:
            raise CoterieError(f"newcomers: {self.newcomers:g} of {clients} clients leaves none to train on")
        return many


def _how_many(key: str, share: int | float, clients: int) -> int:
    if isinstance(share, int):
        if share > clients:
            raise CoterieError(f"{key}: {share} clients, but there are only {clients}")
        return share
    return max(1, round(share * clients))


@dataclass(frozen=True, eq=False)
class Result(Generic[State]):
    """What a run gives back.

    accuracy, macro_f1, summary: over all clients, after the last round. clients: the same, client by client.
    assignments: the cluster of each client. history: what happened in each round. state: the trained models.
    predict(client, x), network(cluster), admit(newcomers): use it.
    """

    method: Method[State]
    model: Model
    state: State
    history: tuple[RoundDone, ...]  # the rounds of this call (a resumed run's earlier ones are in its directory)
    clients: Evaluated  # the last evaluation, client by client
    summary: Summary  # the last evaluation, over all clients
    seconds: float
    federation: Federation = field(repr=False)  # the clients it was trained on
    settings: Settings
    memory: Memory = field(repr=False)  # what clients keep (personal models and the like)
    newcomers: Evaluation | None = None  # those kept from training (`newcomers=0.3`), after they were taken in
    placed: Any = field(default=None, repr=False)  # the state with every evaluated client in its place
    run_dir: Path | None = None

    @property
    def assignments(self) -> NDArray[np.int64]:
        """The cluster of each client, by id: 0 for methods without clusters, -1 for clients not evaluated."""
        found = np.full(len(self.federation), -1, dtype=np.int64)
        for reply in [self.clients, *([self.newcomers.clients] if self.newcomers else [])]:
            found[reply.ids.numpy()] = 0 if reply.choice is None else reply.choice.numpy()
        return found

    @property
    def accuracy(self) -> float | None:
        """Accuracy over all clients; None for regression."""
        return self.summary.accuracy

    @property
    def macro_f1(self) -> float | None:
        """Macro-F1, the mean over clients; None for regression."""
        return self.summary.macro_f1

    def admit(self, newcomers: Federation | Sequence[tuple[ArrayLike, ...]]) -> Served:
        """Find the place of clients that had no part in training, by the method's own rule; nobody is retrained."""
        from coterie.serving import admit

        return admit(self, Federation.of(newcomers))

    def predict(self, client: int, x: ArrayLike | Tensor) -> NDArray[Any]:
        """Labels (or targets) of new inputs, by the model of this client; inputs stored as its own data is."""
        from coterie.serving import predict

        new = self.newcomers is not None and client in self.newcomers.clients.ids
        state = self.newcomers.state if self.newcomers is not None and new else self.placed
        return predict(self, state, self.federation, client, 0, x)

    def network(self, cluster: int = 0) -> nn.Module:
        """The trained network of a cluster, to use or save as any other."""
        from coterie.serving import network

        return network(self, cluster)

    def __repr__(self) -> str:
        score = f"loss {self.summary.loss:.4g}" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        return f"<Result of {type(self.method).__name__}: {score}, clusters {self.summary.sizes}>"


def run(
    method: str | Method[Any],
    federation: Federation | Sequence[tuple[ArrayLike, ...]],
    model: str | Model | nn.Module | Callable[[], nn.Module] = "mlp",
    *,
    rounds: int = 30,
    participation: int | float = 1.0,
    seed: int = 0,
    engine: Literal["sequential", "workers", "batched", "auto"] | Engine = "sequential",
    workers: int | None = None,
    evaluate_every: int = 1,
    evaluate_on: int | float = 1.0,
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
    model: an nn.Module class, a function that builds one, an instance as a blueprint, or a name (`coterie models`).
    rounds, seed: the same seed gives the same bits.
    participation: clients per round, a share (0.1; 1.0 is all) or a count (20; 1 is one).
    engine, workers: "sequential" (the reference); "workers", a process per core (or that many); "batched", many clients
    as one computation, on as many workers; or "auto", the fastest of them here, found out by trying.
    evaluate_every, evaluate_on: rounds between evaluations; a share or a count of the clients evaluated.
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
        evaluate_on=evaluate_on,
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
    federation: Federation,
    settings: Settings,
    engine: Engine,
    store: Any = None,
    listeners: Sequence[Listener] = (),
) -> Result[State]:
    """The round loop."""
    try:
        return _drive(method, model, federation, settings, engine, store, listeners)
    finally:
        if store is not None:
            store.close()


def _drive(
    method: Method[State],
    model: Model,
    federation: Federation,
    settings: Settings,
    engine: Engine,
    store: Any,
    listeners: Sequence[Listener],
) -> Result[State]:
    (roster, kept_back), began = crowd(federation, settings), time.perf_counter()
    history: list[RoundDone] = []
    with one_thread():
        state = method.init(model, roster, generator(settings.seed, Purpose.INIT))
        done = 0
        if store is not None:
            state, done = store.begin(state, engine.memory)
            listeners = [store.listen, *listeners]
        start = RunStarted(
            type(method).__name__,
            federation.describe(),
            len(roster.ids),
            settings.per_round(len(roster.ids)),
            settings.rounds,
            done,
        )
        _tell(listeners, start)
        evaluated: Evaluation | None = None
        for t in range(done, settings.rounds):
            state, event = _round(method, state, roster, settings, engine, t)
            if (t + 1) % settings.evaluate_every == 0 or t + 1 == settings.rounds:
                evaluated = evaluate(method, state, federation, settings, engine, t, roster)
                event = replace(event, summary=evaluated.summary, unscored=evaluated.unscored)
            history.append(event)
            # The line before the checkpoint: a crash between the two leaves a line too many, which resuming drops.
            _tell(listeners, event)
            last = t + 1 == settings.rounds
            if store is not None and (last or (t + 1) % settings.checkpoint_every == 0):
                store.save(state, engine.memory, t + 1)
        if evaluated is None:  # resumed with nothing left to do
            evaluated = evaluate(method, state, federation, settings, engine, settings.rounds - 1, roster)
        newcomers = meet(method, state, federation, settings, engine, kept_back)
        seconds = time.perf_counter() - began
        ended = RunEnded(
            evaluated.clients, evaluated.summary, seconds, None if newcomers is None else newcomers.clients
        )
        _tell(listeners, ended)
    path = None if store is None else store.path
    return Result(
        *(method, model, state, tuple(history), evaluated.clients, evaluated.summary),
        *(seconds, federation, settings, engine.memory, newcomers, evaluated.state),
        run_dir=path,
    )


def _round(
    method: Method[State], state: State, roster: Roster, settings: Settings, engine: Engine, t: int
) -> tuple[State, RoundDone]:
    """One round, repeated with other clients while too few answer."""
    began = time.perf_counter()
    for attempt in range(settings.retries + 1):
        ids = sample(roster, settings, t, attempt)
        cohort = Cohort(ids, t, roster, generator(settings.seed, Purpose.METHOD, t, attempt))
        gone = drop(ids, settings, t, attempt)
        ask = Asker(engine, ids, settings.seed, t, quorum=settings.quorum, gone=gone)
        engine.memory.begin()
        try:
            state = method.round(state, cohort, ask)
        except QuorumError as error:
            engine.memory.undo()
            if attempt == settings.retries:
                tries = f" (tried {attempt + 1} times)" if attempt else ""
                raise QuorumError(f"{error}{tries}. A lower quorum lets the run go on without them.") from None
            continue
        missing = tuple(ask.missing[c] for c in sorted(ask.missing))
        seconds = time.perf_counter() - began
        asked = len(ask.asked)
        return state, RoundDone(t + 1, asked, asked - len(missing), missing, attempt + 1, seconds, None)
    raise AssertionError("unreachable")


def crowd(federation: Federation, settings: Settings) -> tuple[Roster, Roster]:
    """Who trains, and who is kept back to come anew after it."""
    everyone = federation.roster
    many = settings.kept_back(len(federation))
    chosen = generator(settings.seed, Purpose.NEWCOMERS).choice(len(federation), many, replace=False)
    new = torch.zeros(len(federation), dtype=torch.bool)
    new[torch.from_numpy(chosen)] = True
    return Roster(everyone.ids[~new], everyone.n[~new]), Roster(everyone.ids[new], everyone.n[new])


def sample(roster: Roster, settings: Settings, t: int, attempt: int) -> Tensor:
    """Who takes part in round t: the same for every method under the same seed."""
    rng = generator(settings.seed, Purpose.COHORT, t, attempt)
    return _some(roster, settings.per_round(len(roster.ids)), rng)


def _some(roster: Roster, many: int, rng: np.random.Generator) -> Tensor:
    if many == len(roster.ids):
        return roster.ids
    return roster.ids[torch.from_numpy(np.sort(rng.choice(len(roster.ids), many, replace=False)))]


def drop(ids: Tensor, settings: Settings, t: int, attempt: int) -> Tensor:
    """Which of these clients do not answer, when dropping out is simulated."""
    rng = generator(settings.seed, Purpose.DROPOUT, t, attempt)
    return ids[torch.from_numpy(rng.random(len(ids)) < settings.dropout)] if settings.dropout else ids[:0]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How clients fare: one by one, over all, and who could not be asked."""

    clients: Evaluated
    summary: Summary
    unscored: tuple[Missing, ...]
    state: Any = field(repr=False)  # the method's, with these clients in their places


def evaluate(
    method: Method[State],
    state: State,
    federation: Federation,
    settings: Settings,
    engine: Engine,
    t: int,
    roster: Roster,
    many: int | None = None,
) -> Evaluation:
    """Every client's score under the method's own rule; looks, and changes nothing."""
    rng = generator(settings.seed, Purpose.EVALUATION)
    ids = _some(roster, settings.evaluated(len(roster.ids)) if many is None else many, rng)
    ask = Asker(engine, ids, settings.seed, t, keep=False)
    if isinstance(method, Admits):
        rng = generator(settings.seed, Purpose.METHOD, t, settings.retries + 1)
        # As many at a time as take part in a round: evaluation needs no more room than training.
        for some in ids.split(max(_how_many("participation", settings.participation, len(federation)), 32)):
            state = method.admit(state, Cohort(some, t, roster, rng), ask)
    reply: Evaluated = ask(method.predictor(state))
    if not len(reply.ids):
        first = min(ask.missing.values(), key=lambda m: m.client)
        raise CoterieError(f"round {t + 1}: no client could be evaluated; client {first.client}: {first.reason}")
    by = {"test": reply.n, "train": federation.roster.n[reply.ids], "equal": torch.ones(len(reply.ids))}
    weights = by[settings.weigh_clients].double() * (reply.n > 0)
    if not float(weights.sum()):
        raise CoterieError("data: no client has test samples to evaluate on; hold some out (test > 0)")
    ids_ = reply.ids.numpy()
    truth = None if federation.truth is None else federation.truth[ids_]
    mixture = None if federation.mixture is None else federation.mixture[ids_]
    unscored = tuple(ask.missing[c] for c in sorted(ask.missing))
    return Evaluation(reply, summarise(reply, weights, truth, mixture), unscored, state)


def meet(
    method: Method[State], state: State, federation: Federation, settings: Settings, engine: Engine, new: Roster
) -> Evaluation | None:
    """Clients that had no part in training find their place by the method's own rule, and are evaluated."""
    if not len(new.ids):
        return None
    return evaluate(method, state, federation, settings, engine, settings.rounds, new, many=len(new.ids))


def _tell(listeners: Sequence[Listener], event: RunStarted | RoundDone | RunEnded) -> None:
    for listener in listeners:
        listener(event)


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread for the time being: many small clients do not profit from more, and bits stay the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
