"""What somebody who uses a trained model should know against it, computed from its run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from coterie.client.visit import TaskRunner
from coterie.core.compute import one_thread
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.tasks import Evaluated
from coterie.data.federation import Federation
from coterie.training.predict import confidence
from coterie.training.result import Result

FEW_CLIENTS = 5
FEW_SAMPLES = 100  # to test on
SURE = 0.95  # probability that no other cluster's model serves a client better; a client with less is doubtful
CLEAR = 0.5  # of a client that shares in several clusters: its largest share; a client with less is doubtful
LOOKED_AT = 200  # clients of a cluster whose data is looked at
SHOWN = 10  # ids in a sentence


def caveats(result: Result[Any], clients: Sequence[int], *, look_at_data: bool = True) -> Iterator[str]:
    """Sentences; the last ones are the warnings of the run itself."""
    if not clients:
        yield "No client is in this cluster: its model was tested by nobody."
    elif len(clients) < FEW_CLIENTS:
        many = "Only one client is" if len(clients) == 1 else f"Only {len(clients)} clients are"
        yield f"{many} behind these numbers: the spread over clients says little."
    reply = evaluated(result)
    here = torch.isin(reply.ids, torch.tensor(clients, dtype=torch.int64))
    tested = int(reply.n[here].sum())
    if clients and tested < FEW_SAMPLES:
        yield f"Only {tested} test samples: an accuracy or error may be off by much."
    untested = len(clients) - int((reply.n[here] > 0).sum())
    if untested:
        yield f"{untested} of its {len(clients)} clients have no test samples and are in no score."
    yield (
        f"One run with seed {result.settings.seed}: other seeds give other models, and may give other clusters "
        "(coterie compare ... seeds=5 says how much that matters)."
    )
    yield from _no_better(result, reply, clients)
    yield from _doubtful(result, reply, clients, look_at_data)
    for text in result.warnings:
        yield f"The run warns: {text}."


def evaluated(result: Result[Any]) -> Evaluated:
    """The scores of all clients, newcomers included."""
    if result.newcomers is None:
        return result.clients
    parts = (result.clients, result.newcomers.clients)

    def joined(name: str) -> Any:
        found = [getattr(part, name) for part in parts]
        return None if any(one is None for one in found) else torch.cat(found)

    names = ("ids", "n", "loss", "accuracy", "macro_f1", "choice", "shares", "mae", "constant", "variance", "level")
    return Evaluated(**{name: joined(name) for name in names})


def _no_better(result: Result[Any], reply: Evaluated, clients: Sequence[int]) -> Iterator[str]:
    """Clients whom the model serves no better than a constant, or a guess, would."""
    outputs = len(result.class_names or ()) or int(getattr(result.known, "outputs", 0))
    if reply.constant is not None:
        bad, than = reply.loss > reply.constant, "always saying the mean of its training targets"
    elif outputs > 1:
        bad, than = reply.accuracy <= 1 / outputs, f"guessing one of {outputs} classes"
    else:
        return
    found = [c for c, b, n in zip(reply.ids.tolist(), bad.tolist(), reply.n.tolist(), strict=True) if b and n]
    found = sorted(set(found) & set(clients))
    if found:
        yield f"For {_ids(found)} the model is no better than {than}."


def _doubtful(result: Result[Any], reply: Evaluated, clients: Sequence[int], look: bool) -> Iterator[str]:
    if reply.shares is not None:
        largest = dict(zip(reply.ids.tolist(), reply.shares.max(1).values.tolist(), strict=True))
        found = [c for c in clients if largest.get(c, 1.0) < CLEAR]
        if found:
            yield f"Doubtful: {_ids(found)} belong to no cluster by more than {CLEAR:.0%}."
        return
    if not look or len(np.unique(result.assignments[result.assignments >= 0])) < 2:
        return
    federation = _data(result)
    if federation is None:
        yield "Whether clients are doubtful was not looked at: that needs their data, which is not here."
        return
    looked = list(clients)[:LOOKED_AT]
    found = [c for c in looked if confidence_of(result, federation, c) < SURE]  # NaN: it has no single cluster
    if found:
        of = "" if len(looked) == len(clients) else f" (of the first {LOOKED_AT} clients)"
        yield (
            f"Doubtful{of}: {_ids(found)}. By their own training samples another cluster's model may serve them as "
            f"well (probability above {1 - SURE:.0%})."
        )


def confidence_of(result: Result[Any], federation: Federation, client: int) -> float:
    """The probability that no other cluster's model serves a client better; NaN where it has no single cluster."""
    place = int(result.assignments[client])
    state = result.state if result.placed is None else result.placed
    if result.newcomers is not None and client in result.newcomers.clients.ids:
        state = result.newcomers.state
    try:
        with one_thread():
            task = result.method.predictor(state)
            return confidence(TaskRunner(result.model), task, client, federation.client(client), place)
    except CoterieError:
        return math.nan


def _data(result: Result[Any]) -> Federation | None:
    """The training data, if it is here."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CoterieWarning)  # about its columns: said when the run began
            return result.last_data
    except CoterieError:
        return None


def _ids(found: Sequence[int]) -> str:
    """By number: names of clients do not belong into what is passed on."""
    shown = ", ".join(map(str, found[:SHOWN])) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")
    return f"client {shown}" if len(found) == 1 else f"clients {shown}"
