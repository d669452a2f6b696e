"""What Halves asks clients for in a visit."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from coterie.clustering.halves_in_time import has_changed
from coterie.core.client_table import ByClient
from coterie.core.errors import NoAnswerError
from coterie.core.local import Local
from coterie.core.references import Pick
from coterie.core.replies import Fitted
from coterie.core.tasks import Evaluate, Fit
from coterie.methods.contract import Ask
from coterie.methods.halves_state import SLOT, Halved, sketches
from coterie.methods.halves_trial import AFTER, BEFORE, BOTH, PERSONAL


def work_of(state: Halved, met: Tensor, local: Local, mu: float) -> list[Fit | Evaluate]:
    """Train the clusters' models; on trial also those before the split and personal ones, all on one half.

    Where there is one cluster, its model is trained on all samples as ever, and comes first: it is that of FedAvg to
    the bit. With many clients a model owes little to the samples of one, and what it owes counts against personal
    models.
    """
    before, after, own = state.kinds()
    half: Literal[0] | None = 0 if state.trial.on else None
    tasks: list[Fit | Evaluate] = [
        Fit(after, local=local, half=half if state.trial.of_split or len(state.centers) > 1 else None)
    ]
    if state.trial.rounds > 0:  # all were trained: score them on the half that none is trained on
        kinds = (BEFORE, AFTER, PERSONAL) if state.trial.of_split else (AFTER, PERSONAL, BOTH)
        tasks += [dataclasses.replace(state.predicts(kind), split="train", half=1, on=met) for kind in kinds]
    if state.trial.of_split:
        tasks.append(Fit(before, local=local, half=half, on=met, optimizer_slot=f"{SLOT}.before"))
    if state.trial.on or state.kind in (PERSONAL, BOTH):
        personal = Fit(own, anchor=after, mu=mu, local=local, save=SLOT, send=False, half=half, on=met)
        tasks.append(dataclasses.replace(personal, optimizer_slot=f"{SLOT}.optimizer"))
    return tasks


def due_looks(state: Halved, met: Tensor, local: Local, steps: int) -> list[Fit]:
    """Looks at those of these clients that were not looked at from their cluster's anchor yet; none after a refusal."""
    due = met[:0] if state.refused else met[~state.looks.has(met)]
    return looks_of(state, due, local, steps) if len(due) else []


def looks_of(state: Halved, due: Tensor, local: Local, steps: int) -> list[Fit]:
    """The same training on either half; nothing of it is kept, and only sketches are sent."""
    anchor = Pick(state.anchors, ByClient(due, state.group_of[state.labels.at(due)]))
    local = dataclasses.replace(local, epochs=None, steps=steps, keep_optimizer=False)
    numbers = state.looks.values.shape[-1]
    return [Fit(anchor, local=local, half=h, sketch=numbers, send=False, keep=False, on=due) for h in (0, 1)]


def changed_since(state: Halved, local: Local, steps: int, ask: Ask, ids: Tensor) -> Tensor:
    """Those of these clients that were looked at, and whose data has changed since, by another look from there."""
    if not len(known := ids[state.looks.has(ids)]):
        return known
    try:
        first, second = ask(looks_of(state, known, local, steps))
    except NoAnswerError:
        return known[:0]
    assert isinstance(first, Fitted)
    assert isinstance(second, Fitted)
    if not len(first.ids):
        return first.ids
    then, now = state.looks.at(first.ids), sketches(first, second)
    return first.ids[has_changed(then, now)]


def without(reply: Fitted, gone: Tensor) -> Fitted:
    """Looks without those of clients that have moved since: they are from the model of the cluster they left."""
    if not len(gone):
        return reply
    kept = ~torch.isin(reply.ids, gone)
    assert reply.sketch is not None
    return Fitted(reply.ids[kept], reply.n[kept], reply.loss[kept], sketch=reply.sketch[kept])
