"""An engine around an engine: the answers of hostile clients are replaced by what they say instead.

It works on the answers of a visit, whichever engine brought them, so an attack is the same to the bit on every engine.
Data that is poisoned (label-flip, backdoor) is `data.poisoning`; what clients keep for themselves stays honest, and so
do descriptions, except those of colluders, who describe their data as one of their victims does.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.core.errors import NOT_FINITE, CoterieError
from coterie.core.references import Own, Ref, starts_of, vectors_of
from coterie.core.registry import NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import ByClient
from coterie.core.tasks import Described, Fit, Fitted, Reply, Scored, Task
from coterie.engines.attacks import POSES, Attack, AttackView, Lie
from coterie.engines.contract import Engine, Missing, Outcome, Visit, arithmetic, device_of
from coterie.engines.screening import without


class Hostile:
    """An engine some of whose clients are hostile."""

    def __init__(self, engine: Engine, attack: Attack, seed: int, ids: Tensor, truth: ByClient | None = None) -> None:
        """ids: everyone. truth: the hidden cluster of each, where it is known; colluders pose as one of them."""
        self.memory, self._engine, self._attack, self._seed = engine.memory, engine, attack, seed
        self.arithmetic, self.device = arithmetic(engine), device_of(engine)
        self.clients = attack.hostile(seed, ids)
        self._attacker, self._truth = attack.attacker(NO_CODE), truth

    def visit(self, visit: Visit) -> Outcome:
        """See `Engine.visit`."""
        outcome = self._engine.visit(visit)
        pairs = zip(visit.tasks, outcome.replies, strict=True)
        replies = [self._answer(visit, i, task, reply) for i, (task, reply) in enumerate(pairs)]
        broken = {client for reply in replies if isinstance(reply, Fitted) for client in _broken(reply)}
        lost = tuple(Missing(client, f"its model has a value {NOT_FINITE}") for client in sorted(broken))
        return Outcome(tuple(without(reply, sorted(broken)) for reply in replies), (*outcome.missing, *lost))

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()

    def _answer(self, visit: Visit, number: int, task: Task, reply: Reply) -> Reply:
        hostile = torch.isin(reply.ids, self.clients)
        if not bool(hostile.any()):
            return reply
        if isinstance(reply, Scored | Described):
            return self._posing(reply, hostile)
        if not isinstance(task, Fit) or not isinstance(reply, Fitted):
            return reply
        words = (visit.moment.round, visit.moment.task + number)
        view = AttackView(
            *(task, reply.ids, torch.empty(0), hostile, self._victims(reply.ids, hostile), reply.choice),
            *(self._attack.size, generator(self._seed, Purpose.ATTACK, *words)),
        )
        if reply.sketch is not None:
            told = self._told(dataclasses.replace(view, updates=reply.sketch))
            reply = dataclasses.replace(reply, sketch=_put(reply.sketch, hostile, told.updates))
        if reply.sent is None:
            return reply
        begin = _starts(task.start, reply)
        told = self._told(dataclasses.replace(view, updates=reply.models - begin))
        if told.choice is not None and reply.choice is not None:
            reply = dataclasses.replace(reply, choice=_put(reply.choice, hostile, told.choice))
            begin = _starts(task.start, reply)
        start = begin.expand(len(reply.ids), -1)[hostile]
        return dataclasses.replace(reply, sent=_put(reply.models, hostile, start + told.updates))

    def _told(self, view: AttackView) -> Lie:
        try:
            lie = self._attacker(view)
        except CoterieError:
            raise
        except Exception as error:
            raise CoterieError(
                f"attack.kind: '{self._attack.name}' failed: {type(error).__name__}: {error}", code="component-failed"
            ) from error
        wanted = (int(view.hostile.sum()), view.updates.shape[1])
        if not isinstance(lie, Lie) or tuple(lie.updates.shape) != wanted:
            found = tuple(lie.updates.shape) if isinstance(lie, Lie) else f"a {type(lie).__name__}"
            raise CoterieError(
                f"attack.kind: '{self._attack.name}' returned {found}; return Lie(updates) with updates {wanted}, "
                "one per hostile client",
                code="component-invalid",
            )
        chosen = None if view.choice is None else lie.choice
        if chosen is not None and not _is_choice(chosen, wanted[0], view.task.start):
            raise CoterieError(
                f"attack.kind: '{self._attack.name}' returned the choice {str(chosen)[:80]}; Lie(updates, choice) has "
                f"{wanted[0]} integers, a row of the server's models per hostile client",
                code="component-invalid",
            )
        return lie

    def _victims(self, ids: Tensor, hostile: Tensor) -> Tensor:
        if self._truth is None:
            return ~hostile
        return ~hostile & (self._truth.at(ids, default=-1) == self._attack.cluster)

    def _posing(self, reply: Scored | Described, hostile: Tensor) -> Reply:
        """Colluders score, or describe their data, as their victims do, and so are put into their cluster."""
        victims = self._victims(reply.ids, hostile)
        if self._attack.kind != POSES or not bool(victims.any()):
            return reply
        many = int(hostile.sum())
        if isinstance(reply, Described):  # of one victim: a mean of singular vectors is none
            return dataclasses.replace(reply, rows=_put(reply.rows, hostile, reply.rows[victims][:1].repeat(many, 1)))
        return dataclasses.replace(
            reply, scores=_put(reply.scores, hostile, reply.scores[victims].mean(0).repeat(many, 1))
        )


def _put(table: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    out = table.clone()
    out[rows] = values.to(table.dtype)
    return out


def _given(start: Ref) -> Ref:
    """For a model of the clients' own, what the server would have given them."""
    while isinstance(start, Own):
        start = start.default
    return start


def _is_choice(choice: object, many: int, start: Ref) -> bool:
    """Whether these are rows of the server's models, one for each of so many clients."""
    if not isinstance(choice, Tensor) or choice.shape != (many,) or choice.is_floating_point():
        return False
    rows = vectors_of(_given(start))
    return rows is None or bool(((choice >= 0) & (choice < len(rows))).all())


def _starts(start: Ref, reply: Fitted) -> Tensor:
    """What clients started from."""
    found = starts_of(_given(start), reply.ids, reply.choice)
    return reply.models.mean(0, keepdim=True) if found is None else found


def _broken(reply: Fitted) -> list[int]:
    tables = [reply.sent if isinstance(reply.sent, Tensor) else None, reply.sketch]
    bad = torch.zeros(len(reply.ids), dtype=torch.bool)
    for table in tables:
        if table is not None:
            bad |= ~table.isfinite().all(1)
    return reply.ids[bad].tolist()
