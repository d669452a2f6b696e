"""Clients' scores under a method's own rule, between rounds and after the last one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from coterie.client.contract import ClientDataSource
from coterie.client.visit import Keeps, chosen
from coterie.core.errors import AnswersMissingError, CoterieError
from coterie.core.metrics import Summary, summarise
from coterie.core.model import Model
from coterie.core.references import Reference, describe_value
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Clients, Cohort, Roster, clients_at
from coterie.core.tasks import Evaluate, Evaluated
from coterie.data.federation import Federation
from coterie.engines.contract import Missing
from coterie.engines.sequential import Sequential
from coterie.methods.contract import Admits, Method, admitted
from coterie.training.ask import RoundAsk
from coterie.training.job import Job
from coterie.training.sampling import available, draw, roster_at
from coterie.training.settings import Settings

State = TypeVar("State")
ScoredSplit: TypeAlias = Literal["val", "test"]  # the samples that scores are computed on


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores of each client and over all clients, and the clients that could not be evaluated."""

    clients: Evaluated
    summary: Summary
    unscored: tuple[Missing, ...]
    state: Any = field(repr=False)  # the method's, after it admitted these clients
    split: ScoredSplit = "test"

    @property
    def scored_on(self) -> Literal["test", "validation"]:
        """The split as files and pages name it."""
        return "test" if self.split == "test" else "validation"


class NoClientEvaluatedError(AnswersMissingError):
    """No client could be evaluated; between rounds the clients may be away only temporarily."""

    code = "evaluation-empty"

    def __init__(self, round: int, unscored: tuple[Missing, ...]) -> None:
        first = f"{unscored[0].who}: {unscored[0].reason}" if unscored else "no client is connected"
        super().__init__(f"round {round}: no client could be evaluated; {first}", round, unscored)


def evaluate(
    job: Job[State], state: State, t: int, roster: Roster, *, count: int | None = None, split: ScoredSplit = "test"
) -> Evaluation:
    """The score of every client under the method's own rule. Training is not affected.

    count: how many of the roster are evaluated; None: as many as `evaluate_on` says.
    """
    method, clients, settings = job.method, clients_at(job.clients, t), job.settings
    rng, roster = generator(settings.seed, Purpose.EVALUATION), roster_at(job.clients, roster, t)
    if count is None:
        count = available("evaluate_on", settings.evaluate_on, len(roster.ids))
    ids = draw(roster, count, rng)
    if not len(ids):
        raise NoClientEvaluatedError(t + 1, ())
    ask = RoundAsk(job.stack, ids, settings.seed, t, kind="admit", names=clients.names)
    state = _admitted(job, state, t, roster, ids, ask)
    reply: Evaluated = ask(replace(checked_predictor(method, state), split=split))
    unscored = ask.lost
    if not len(reply.ids):
        raise NoClientEvaluatedError(t + 1, unscored)
    weights = client_weights(settings, clients, reply)
    if not float(weights.sum()):
        what = "test samples to evaluate on; hold some out (test > 0)"
        what = what if split == "test" else "validation samples; hold some out (validation=0.2)"
        raise CoterieError(f"data: no client has {what}", code="data-split")
    ids_ = reply.ids.numpy()
    truth = None if clients.truth is None else clients.truth[ids_]
    mixture = None if clients.mixture is None else clients.mixture[ids_]
    return Evaluation(reply, summarise(reply, weights, truth, mixture), unscored, state, split)


def _admitted(job: Job[State], state: State, t: int, roster: Roster, ids: Tensor, ask: RoundAsk) -> State:
    """The state that includes these clients; unchanged if the method has no rule for them."""
    method, settings = job.method, job.settings
    if not isinstance(method, Admits):
        return state
    rng = generator(settings.seed, Purpose.METHOD, t, settings.retries + 1)
    # As many at a time as take part in a round: it needs no more memory than training.
    for part in ids.split(max(available("participation", settings.participation, len(job.clients)), 32)):
        state = admitted(method, state, Cohort(part, t, roster, rng), ask)
    return state


def admit_joined(job: Job[State], state: State, done: int, joined: Tensor) -> State:
    """Clients that were added to a run take their places by the method's own rule, before they train."""
    roster = job.clients.roster
    ids = joined[torch.isin(joined, roster.ids)]
    if not len(ids) or not done:
        return state
    if not job.stack.admits():
        return state  # a layer has them placed in their first round
    ask = RoundAsk(job.stack, ids, job.settings.seed, done - 1, kind="admit", names=job.clients.names)
    return _admitted(job, state, done - 1, roster, ids, ask)


def client_weights(settings: Settings, clients: Clients, reply: Evaluated) -> Tensor:
    """How each of these clients counts in a mean over them; not at all without samples."""
    by = {"test": reply.n, "train": clients.sizes(reply.ids), "equal": torch.ones(len(reply.ids))}
    return by[settings.weigh_clients].double() * (reply.n > 0)


def evaluate_newcomers(job: Job[State], state: State, newcomers: Roster) -> Evaluation | None:
    """Admit clients that had no part in training by the method's own rule, and evaluate them."""
    if not len(newcomers.ids):
        return None
    return evaluate(job, state, job.settings.rounds, newcomers, count=len(newcomers.ids))


def checked_predictor(method: Method[State], state: State) -> Evaluate:
    """How the method's clients predict; an error where it does not say so in an `Evaluate`."""
    given: object = method.predictor(state)
    if isinstance(given, Evaluate):
        return given
    inner = f"{type(given).__name__}(...)" if isinstance(given, Reference) else "All(w)"
    raise CoterieError(
        f"{type(method).__name__}.predictor returned {describe_value(given)}; return Evaluate(({inner},))",
        code="method-invalid",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluationRecord:
    """An evaluation read back, and what its clients chose by their own data (see `choices.chosen`)."""

    evaluation: Evaluation
    chosen: tuple[Tensor, ...] | None


def packable(
    evaluation: Evaluation, method: Method[Any], model: Model, source: ClientDataSource | None, memory: Keeps
) -> Mapping[str, Any]:
    """As names, numbers and tensors, for `codec.pack`: no type in it but those of the method's own state."""
    task, reply = method.predictor(evaluation.state), evaluation.clients
    return {
        "clients": values_of(reply),
        "summary": values_of(evaluation.summary),
        "unscored": [[missing.client, missing.reason] for missing in evaluation.unscored],
        "state": evaluation.state,
        "chosen": chosen(task, reply, model, source, memory),
    }


def unpacked(found: Mapping[str, Any]) -> EvaluationRecord:
    """The inverse of `packable`."""
    unscored = tuple(Missing(client, reason) for client, reason in found["unscored"])
    clients, summary = (made_of(kind, found[key]) for key, kind in (("clients", Evaluated), ("summary", Summary)))
    return EvaluationRecord(Evaluation(clients, summary, unscored, found["state"]), found["chosen"])


def values_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass, by name."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def made_of(kind: type[Any], found: Mapping[str, Any]) -> Any:
    """What another version wrote may have fields that this one does not know, or lack some that have a default."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in found.items() if name in known})


def score_elsewhere(job: Job[State], state: State, roster: Roster, data: Clients) -> Summary:
    """The scores of these clients on other data, by the final models and without any layers."""
    assert isinstance(data, Federation)
    engine = Sequential(job.model, data)
    engine.memory = job.engine.memory
    there = replace(job, clients=data, engine=engine, layers=())
    return evaluate(there, state, job.settings.rounds - 1, roster).summary
