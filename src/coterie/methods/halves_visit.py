"""What Halves asks clients for in a visit."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from coterie.core.client_table import ByClient
from coterie.core.local import Local
from coterie.core.references import Pick
from coterie.core.tasks import Evaluate, Fit
from coterie.methods.halves_state import SLOT, Halved
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


def looks_of(state: Halved, due: Tensor, local: Local, steps: int) -> list[Fit]:
    """The same training on either half; nothing of it is kept, and only sketches are sent."""
    anchor = Pick(state.anchors, ByClient(due, state.group_of[state.labels.at(due)]))
    local = dataclasses.replace(local, epochs=None, steps=steps, keep_optimizer=False)
    numbers = state.looks.values.shape[-1]
    return [Fit(anchor, local=local, half=h, sketch=numbers, send=False, keep=False, on=due) for h in (0, 1)]
