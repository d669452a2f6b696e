"""How clients fare under a method's own rule, between rounds and after the last one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from coterie.asking import Asker
from coterie.attendance import present, some
from coterie.clients import Clients
from coterie.engines.contract import Engine, Missing
from coterie.errors import CoterieError
from coterie.methods.contract import Admits, Method
from coterie.metrics import Summary, summarise
from coterie.seeds import Purpose, generator
from coterie.settings import Settings
from coterie.tasks import Cohort, Evaluated, Roster

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How clients fare: one by one, over all, and who could not be asked."""

    clients: Evaluated
    summary: Summary
    unscored: tuple[Missing, ...]
    state: Any = field(repr=False)  # the method's, with these clients in their places


class NobodyError(CoterieError):
    """Nobody could be evaluated: between rounds clients may just be away for a while."""

    def __init__(self, round: int, unscored: tuple[Missing, ...]) -> None:
        first = f"client {unscored[0].client}: {unscored[0].reason}" if unscored else "no client is there"
        super().__init__(f"round {round}: no client could be evaluated; {first}")
        self.unscored = unscored


def evaluate(
    method: Method[State],
    state: State,
    clients: Clients,
    settings: Settings,
    engine: Engine,
    t: int,
    roster: Roster,
    many: int | None = None,
) -> Evaluation:
    """Every client's score under the method's own rule; looks, and changes nothing."""
    rng = generator(settings.seed, Purpose.EVALUATION)
    ids = some(roster, present("evaluate_on", settings.evaluate_on, len(roster.ids)) if many is None else many, rng)
    if not len(ids):
        raise NobodyError(t + 1, ())
    ask = Asker(engine, ids, settings.seed, t, keep=False)
    if isinstance(method, Admits):
        rng = generator(settings.seed, Purpose.METHOD, t, settings.retries + 1)
        # As many at a time as take part in a round: evaluation needs no more room than training.
        for part in ids.split(max(present("participation", settings.participation, len(clients)), 32)):
            state = method.admit(state, Cohort(part, t, roster, rng), ask)
    reply: Evaluated = ask(method.predictor(state))
    unscored = tuple(ask.missing[c] for c in sorted(ask.missing))
    if not len(reply.ids):
        raise NobodyError(t + 1, unscored)
    by = {"test": reply.n, "train": clients.sizes(reply.ids), "equal": torch.ones(len(reply.ids))}
    weights = by[settings.weigh_clients].double() * (reply.n > 0)
    if not float(weights.sum()):
        raise CoterieError("data: no client has test samples to evaluate on; hold some out (test > 0)")
    ids_ = reply.ids.numpy()
    truth = None if clients.truth is None else clients.truth[ids_]
    mixture = None if clients.mixture is None else clients.mixture[ids_]
    return Evaluation(reply, summarise(reply, weights, truth, mixture), unscored, state)


def meet(
    method: Method[State], state: State, clients: Clients, settings: Settings, engine: Engine, new: Roster
) -> Evaluation | None:
    """Clients that had no part in training find their place by the method's own rule, and are evaluated."""
    if not len(new.ids):
        return None
    return evaluate(method, state, clients, settings, engine, settings.rounds, new, many=len(new.ids))
