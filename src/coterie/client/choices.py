"""What clients chose by their own data, recorded: a trained run can then be used without that data.

`Best` (a client takes the center of least loss) and `Estimated` (it estimates its share in each center) need a client's
training samples. After an evaluation both are known, and `settled` puts what was chosen in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from coterie.client.answers import Moment
from coterie.client.data import ClientDataSource
from coterie.client.visit import ClientVisit, Networks
from coterie.core.model import Model
from coterie.core.references import Best, Estimated, Mix, OneRow, Own, Personal, Pick, Ref, substitute, walk
from coterie.core.tables import ByClient
from coterie.core.tasks import Evaluate, Evaluated

Choice: TypeAlias = Best | Estimated


class Keeps(Protocol):
    """What clients keep between visits."""

    def read(self, client: int) -> Mapping[str, Tensor]:
        """What this client keeps."""


def open_choices(task: Evaluate) -> list[Choice]:
    """The references that depend on a client's own data, each once, in the order in which they occur."""
    found: list[Choice] = []
    for node in walk(task):
        if isinstance(node, Choice) and all(node is not other for other in found):
            found.append(node)
    return found


def needs_data(task: Evaluate, keeps: Mapping[str, Tensor]) -> bool:
    """Whether a client that keeps these values has to choose by its own data before it can predict."""
    predicts = replace(task, belongs=None)  # which is only reported
    untrained = (isinstance(node, Personal) and node.tune and node.own.slot not in keeps for node in walk(predicts))
    return any(isinstance(node, Choice) for node in walk(predicts, keeps)) or any(untrained)


def chosen(
    task: Evaluate, reply: Evaluated, model: Model, source: ClientDataSource | None, memory: Keeps
) -> tuple[Tensor, ...] | None:
    """What the clients of a reply chose: rows (n,) or shares (n, K) per open choice; None if it is not known.

    For every method of the library the reply contains it. If a method leaves several choices, `source` gives the data.
    """
    choices = open_choices(task)
    if not choices:
        return ()
    if len(choices) == 1:
        reported = _reported(task, choices[0], reply)
        if reported is not None:
            return (reported,)
    if source is None:
        return None
    networks, rows = Networks(model), []
    for client in reply.ids.tolist():
        visit = ClientVisit(networks, client, source.client(client), dict(memory.read(client)), Moment(0, 0, 0))
        rows.append([_found(*visit.resolve(choice)) for choice in choices])
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _found(theta: Tensor, row: int | None) -> Tensor:
    return theta.clone() if row is None else torch.tensor(row)


def _reported(task: Evaluate, choice: Choice, reply: Evaluated) -> Tensor | None:
    """A client's only choice, as its reply has it."""
    if isinstance(choice, Estimated):
        belongs = task.belongs if task.belongs is not None else task.mixture
        mine = belongs is not None and _is(belongs, choice)
        return reply.shares if mine else None
    telling = [ref for ref in task.models if _gives_row(ref)]
    return reply.choice if reply.shares is None and all(_is(ref, choice) for ref in telling) else None


def _is(ref: Ref, choice: Choice) -> bool:
    return ref is choice or (isinstance(ref, Own) and ref.default is choice)


def _gives_row(ref: Ref) -> bool:
    return isinstance(ref.default if isinstance(ref, Own) else ref, OneRow)


def settled(task: Evaluate, ids: Tensor, found: Sequence[Tensor]) -> Evaluate:
    """The same prediction for these clients, with what they chose in place of their choices: it needs no data."""
    choices = open_choices(task)
    places = {id(choice): values for choice, values in zip(choices, found, strict=True)}

    def settle(ref: Ref) -> Ref:
        match ref:
            case Best(centers):
                return Pick(centers, ByClient(ids, places[id(ref)]), ref.personal)
            case Estimated():
                return Pick(places[id(ref)], ByClient(ids, torch.arange(len(ids))))
            case Mix(centers, Estimated() as weights):
                return Mix(centers, ByClient(ids, places[id(weights)]))
            case _:
                return substitute(ref, settle)

    return substitute(task, settle)
