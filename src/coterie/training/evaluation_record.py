"""An evaluation as part of a checkpoint: clients' scores, their places, and what they chose by their own data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from coterie.client.contract import ClientDataSource
from coterie.client.visit import Keeps, chosen
from coterie.core.metrics import Summary
from coterie.core.model import Model
from coterie.core.tasks import Evaluated
from coterie.engines.contract import Missing
from coterie.methods.contract import Method
from coterie.training.evaluation import Evaluation


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
