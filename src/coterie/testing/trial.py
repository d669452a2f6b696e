"""A few rounds of a method on a small federation, as a run plays them, with clients that come, go and fall silent."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import NoAnswerError, QuorumError
from coterie.core.model import Model
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import Task
from coterie.data.federation import Federation
from coterie.engines.contract import Engine, Missing, Outcome, Visit
from coterie.engines.sequential import Sequential
from coterie.layers.contract import Layer, Onward, Stack
from coterie.methods import contract
from coterie.training.ask import RoundAsk
from coterie.training.checkpoint import Checkpoint


class BrokenPromiseError(Exception):
    """What a check has found."""


def expect(holds: bool, otherwise: str) -> None:
    """Raise where it does not hold."""
    if not holds:
        raise BrokenPromiseError(otherwise)


def two_kinds(clients: int = 8) -> Federation:
    """Unequal sizes; the sign of the first input decides, and odd clients hold the opposite of what even ones hold."""
    arrays = []
    for client in range(clients):
        rng, n = np.random.default_rng(client), 7 + 3 * (client % 3)
        x = rng.normal(size=(n + 6, 3)).astype(np.float32)
        y = ((x[:, 0] > 0) == bool(client % 2)).astype(np.int64)
        arrays.append((x[:n], y[:n], x[n:], y[n:]))
    kinds = [client % 2 for client in range(clients)]
    return Federation.from_arrays(
        arrays, outputs=2, truth=kinds, groups=["even" if k == 0 else "odd" for k in kinds], standardise=False
    )


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit by bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        alike = (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and torch.equal(_bytes(one), _bytes(other))
    if dataclasses.is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _renamed(table: ByClient, ids: Tensor) -> ByClient:
    """The table of clients that have other ids, ids[c] for client c."""
    return ByClient.empty().put(ids[table.ids], table.values)


class Renamed:
    """An engine whose clients have other ids, ids[c] for client c, and compute what they would compute as c."""

    def __init__(self, engine: Engine, ids: Tensor) -> None:
        self.memory, self._engine, self._ids = engine.memory, engine, ids
        self._clients = ByClient(ids.sort().values, ids.argsort())

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        tasks = tuple(self._inward(task) for task in visit.tasks)
        outcome = self._engine.visit(replace(visit, tasks=tasks, ids=self._clients.at(visit.ids).sort().values))
        missing = tuple(replace(m, client=int(self._ids[m.client])) for m in outcome.missing)
        return Outcome(tuple(self._outward(reply) for reply in outcome.replies), missing)

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()

    def _inward(self, tree: Any) -> Any:
        if isinstance(tree, ByClient):
            known = tree.only(self._clients.ids)
            return ByClient.empty(tree.values.dtype, tree.values.shape[1:]).put(
                self._clients.at(known.ids), known.values
            )
        if isinstance(tree, tuple):
            return tuple(self._inward(value) for value in tree)
        if not dataclasses.is_dataclass(tree) or isinstance(tree, type):
            return tree
        new = {f.name: self._inward(getattr(tree, f.name)) for f in dataclasses.fields(tree)}
        if isinstance(tree, Task) and tree.on is not None:
            new["on"] = self._clients.at(tree.on).sort().values
        return replace(tree, **new)

    def _outward(self, reply: Any) -> Any:
        """By ascending id again."""
        order = self._ids[reply.ids].argsort()
        rows = {f.name: getattr(reply, f.name) for f in dataclasses.fields(reply)}
        rows = {name: value[order] for name, value in rows.items() if isinstance(value, Tensor)}
        return replace(reply, **rows | {"ids": self._ids[reply.ids][order]})


class _Silent(Layer):
    """Some clients do not answer."""

    key = "silent"

    def __init__(self, who: Tensor) -> None:
        self._who = who

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """See `Layer.visit`."""
        gone = torch.isin(visit.ids, self._who)
        outcome = onward(replace(visit, ids=visit.ids[~gone]))
        lost = tuple(Missing(client, "does not answer") for client in visit.ids[gone].tolist())
        return replace(outcome, missing=(*lost, *outcome.missing))


class NotesTurns(RoundAsk):
    """A round's `ask` that notes which clients were visited alone."""

    alone: frozenset[int] = frozenset()

    def __call__(self, task: Task | Sequence[Task]) -> Any:
        visited = {None if one.on is None else tuple(one.on.tolist()) for one in _listed(task)}
        self.alone |= {ids[0] for ids in visited if ids is not None and len(ids) == 1}
        return super().__call__(task)


def _listed(task: Any) -> list[Task]:
    tasks = task if isinstance(task, list | tuple) else [task]
    return [one for one in tasks if isinstance(one, Task)]


@dataclass(frozen=True)
class Step:
    """A round, with clients by number: who is there, who takes part, and who of these does not answer."""

    there: Sequence[int]
    cohort: Sequence[int]
    silent: Sequence[int] = ()


@dataclass(frozen=True, eq=False)
class Played:
    """What a few rounds came to."""

    states: list[Any]  # copies: before the first round, and after each
    memories: list[dict[str, Tensor]]  # what clients keep, likewise
    losses: Tensor  # (clients,) of everyone's predictions after the last round; NaN where a client has none
    unpredicted: dict[int, Missing]  # the clients that have none
    failed: str  # the first client that could not do what it was asked, and why
    changed: int | None  # the first round, from 1, that changed the state it was given
    drew: bool  # whether rounds drew random numbers
    in_turn: bool  # whether clients were visited one after another, so that one may go on from another's result


class Trial:
    """A method with the data it is tried on; rounds that several checks look at are played once."""

    def __init__(self, method: Any, model: Model, federation: Federation) -> None:
        self.method, self.model, self.federation = method, model, federation
        self.ids = torch.arange(len(federation))
        self.everyone = range(len(federation))

    @cached_property
    def full(self) -> Played:
        """Everyone takes part."""
        return self.play([Step(self.everyone, self.everyone)] * 2)

    @cached_property
    def comings(self) -> list[Step]:
        """Some of the clients take part; two join after the second round, and the last of them is never asked."""
        first = self.everyone[:-2]
        return [Step(first, first[1:]), Step(first, first[::2]), Step(self.everyone, self.everyone[1:-1])]

    @cached_property
    def partial(self) -> Played:
        """With partial participation, and clients that join later."""
        return self.play(self.comings)

    def init(self, seed: int = 0, noise: int = 0) -> Any:
        """The state before the first round, of everyone."""
        _disturb(noise)
        return self.method.init(self.model, self._roster(self.ids, self.everyone), generator(seed, Purpose.INIT))

    def play(
        self,
        steps: Sequence[Step],
        *,
        ids: Tensor | None = None,
        engine: Engine | None = None,
        noise: int = 0,
        since: Checkpoint | None = None,
    ) -> Played:
        """Rounds as a run plays them. ids: what clients are called. noise: seeds the global generators in rounds."""
        _disturb(0)
        ids = self.ids if ids is None else ids
        clients = Renamed(Sequential(self.model, self.federation) if engine is None else engine, ids)
        if since is None:
            roster = self._roster(ids, steps[0].there)
            state, done = self.method.init(self.model, roster, generator(0, Purpose.INIT)), 0
        else:
            state, done = since.state, since.round
            clients.memory.restore(since.memory)
        expect(state is not None, "init returned None")
        states, memories = [copy.deepcopy(state)], [clients.memory.tensors()]
        failed, changed, drew, in_turn = "", None, False, False
        for t, step in list(enumerate(steps))[done:]:
            cohort = self.cohort(ids, step.cohort, step.there, t)
            fresh, gone = copy.deepcopy(cohort.rng.bit_generator.state), ids[list(step.silent)]
            ask = NotesTurns(Stack(clients, [_Silent(gone)]), cohort.ids, 0, t)
            clients.memory.begin()
            _disturb(1000 * noise + t)
            try:
                after = self.method.round(state, cohort, ask)
            except NoAnswerError:
                after = state
            except QuorumError:  # too few answer: a run repeats the round with other clients
                if not step.silent:
                    raise
                clients.memory.undo()
                after = state
            expect(after is not None, f"round {t + 1} returned None")
            changed = t + 1 if changed is None and not same(state, states[-1]) else changed
            failing = [m for m in ask.lost if m.client not in gone.tolist()]
            failed = failed or (f"round {t + 1}: {failing[0].who}: {failing[0].reason}" if failing else "")
            drew = drew or cohort.rng.bit_generator.state != fresh
            in_turn = in_turn or len(ask.alone) > 1
            state = after
            states.append(copy.deepcopy(state))
            memories.append(clients.memory.tensors())
        losses, missing = self.predictions(state, clients, ids, len(steps))
        return Played(states, memories, losses, missing, failed, changed, drew, in_turn)

    def cohort(self, ids: Tensor, part: Sequence[int], there: Sequence[int], t: int) -> Cohort:
        """These clients' round t."""
        taking = ids[list(part)].sort().values
        return Cohort(taking, t, self._roster(ids, there), generator(0, Purpose.METHOD, t, 0))

    def _roster(self, ids: Tensor, there: Sequence[int]) -> Roster:
        order = ids[list(there)].argsort()
        known = self.federation.roster
        groups, truth = (None if t is None else _renamed(t, ids) for t in (known.groups, known.truth))
        return Roster(ids[list(there)][order], self.federation.sizes(torch.tensor(list(there)))[order], groups, truth)

    def predictions(
        self, state: Any, clients: Engine, ids: Tensor, t: int, admitted: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[int, Missing]]:
        """The loss of each client's own predictions, and who has none. admitted: to whom `admit` is put first."""
        ask = RoundAsk(clients, ids.sort().values, 0, t, kind="probe")
        admitted = self.everyone if admitted is None else admitted
        if admitted:
            state = contract.admitted(self.method, state, self.cohort(ids, admitted, self.everyone, t), ask)
        reply = ask(self.method.predictor(state))
        number = {client: c for c, client in enumerate(ids.tolist())}
        losses = torch.full((len(ids),), torch.nan)
        losses[[number[client] for client in reply.ids.tolist()]] = reply.loss.float()
        return losses, {number[m.client]: m for m in ask.lost if m.client not in reply.ids}


def _disturb(noise: int) -> None:
    """Nothing may depend on the global generators."""
    torch.manual_seed(noise)
    np.random.seed(noise)
    random.seed(noise)
