"""A method's state, what clients keep and an evaluation, without some clients: no row of theirs is left.

What they contributed to a mean stays in it. A cluster's model that is a client's alone is no mean: the mean of the
other clusters' models takes its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from coterie.core.metrics import summarise
from coterie.core.tasks import Evaluated
from coterie.data.membership import forgotten_in, identity_without
from coterie.training.checkpoint import Checkpoint
from coterie.training.evaluation_record import made_of, values_of

EVALUATIONS = ("evaluation", "newcomers")  # of what is saved with a state

Weigh: TypeAlias = Callable[[Evaluated], Tensor]  # how clients count in a mean over them


def without_clients(checkpoint: Checkpoint, ids: Tensor, data: str, weigh: Weigh) -> Checkpoint:
    """A checkpoint without these clients. data: the identity of the data without them."""
    gone, seen = set(ids.tolist()), dict[int, Any]()
    memory = {key: t for key, t in checkpoint.memory.items() if int(key.partition("/")[0]) not in gone}
    also = {
        name: _evaluation(one, ids, seen, weigh) if name in EVALUATIONS else one
        for name, one in checkpoint.also.items()
    }
    state = scrubbed(checkpoint.state, ids, seen)
    return Checkpoint(checkpoint.round, state, memory, also, data, checkpoint.belongs | {"data": data})


def without_forgotten(checkpoint: Checkpoint, forgotten: Sequence[int], weigh: Weigh | None = None) -> Checkpoint:
    """A checkpoint without clients that were forgotten after it was made; as it is if there are none."""
    gone = sorted(set(forgotten) - set(forgotten_in(checkpoint.data)))
    if not gone:
        return checkpoint
    data = identity_without(checkpoint.data, gone)
    return without_clients(checkpoint, torch.tensor(gone), data, weigh or (lambda reply: reply.n.double()))


def scrubbed(node: Any, ids: Tensor, seen: dict[int, Any] | None = None) -> Any:
    """A state without the rows of these clients. seen: what was done already; what occurs twice stays one."""
    seen = {} if seen is None else seen
    if id(node) in seen:
        return seen[id(node)]
    made = _scrubbed(node, ids, seen)
    seen[id(node)] = made
    return made


def _scrubbed(node: Any, ids: Tensor, seen: dict[int, Any]) -> Any:
    if isinstance(node, Mapping):
        return {key: scrubbed(value, ids, seen) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return tuple(scrubbed(value, ids, seen) for value in node)
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        return node
    if isinstance(getattr(node, "ids", None), Tensor):
        return _table(node, ids)
    node = node.forget(ids) if hasattr(node, "forget") else node
    values = {f.name: scrubbed(getattr(node, f.name), ids, seen) for f in dataclasses.fields(node) if f.init}
    return dataclasses.replace(node, **values)


def _table(node: Any, ids: Tensor) -> Any:
    """A table of clients (`ids`, and a row for each in every other field) without these."""
    keep = ~torch.isin(node.ids, ids)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if isinstance(value, Tensor) and value.ndim and len(value) == len(keep):
            values[field.name] = value[keep]
        elif isinstance(value, tuple) and len(value) == len(keep):
            values[field.name] = tuple(v for v, kept in zip(value, keep.tolist(), strict=True) if kept)
    return dataclasses.replace(node, **values)


def _evaluation(found: Mapping[str, Any], ids: Tensor, seen: dict[int, Any], weigh: Weigh) -> dict[str, Any]:
    """An evaluation (see `evaluation_record.packable`) without these clients, and its means over the others."""
    gone, clients = set(ids.tolist()), found["clients"]
    keep = ~torch.isin(clients["ids"], ids)
    rows = {k: v[keep] if isinstance(v, Tensor) and len(v) == len(keep) else v for k, v in clients.items()}
    summary, chosen = dict(found["summary"]), found["chosen"]
    if bool((~keep).any()):
        reply = made_of(Evaluated, rows)
        weights = weigh(reply)
        anew = values_of(summarise(reply, weights, None)) if float(weights.sum()) else {"worst_decile": None}
        summary |= {name: value for name, value in anew.items() if name not in ("ari", "nmi", "mixture_error")}
    return {
        "clients": rows,
        "summary": summary,
        "unscored": tuple(one for one in found["unscored"] if one[0] not in gone),
        "state": scrubbed(found["state"], ids, seen),
        "chosen": None if chosen is None else tuple(one[keep] for one in chosen),
    }
