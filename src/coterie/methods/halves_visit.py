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
from coterie.methods.halves_trial import PERSONAL


def trainings(state: Halved, met: Tensor, local: Local, mu: float) -> list[Fit]:
    """Train the clusters' models; on trial also those before the split and personal ones, all on one half."""
    before, after, own = state.kinds()
    half: Literal[0] | None = 0 if state.trial.on else None
    fits = [Fit(after, local=local, half=half)]
    if state.trial.on:
        fits.append(Fit(before, local=local, half=half, on=met, optimizer_slot=f"{SLOT}.before"))
    if state.trial.on or state.kind == PERSONAL:
        personal = Fit(own, anchor=after, mu=mu, local=local, save=SLOT, send=False, half=half, on=met)
        fits.append(dataclasses.replace(personal, optimizer_slot=f"{SLOT}.optimizer"))
    return fits


def measurements(state: Halved, met: Tensor) -> list[Evaluate]:
    """On trial, once all were trained: score every kind of model on the half that none is trained on."""
    kinds = state.kinds() if state.trial.rounds > 0 else ()
    return [Evaluate((kind,), split="train", half=1, on=met) for kind in kinds]


def looks_of(state: Halved, due: Tensor, local: Local, steps: int) -> list[Fit]:
    """The same training on either half; nothing of it is kept, and only sketches are sent."""
    anchor = Pick(state.anchors, ByClient(due, state.group_of[state.labels.at(due)]))
    local = dataclasses.replace(local, epochs=None, steps=steps, keep_optimizer=False)
    numbers = state.looks.values.shape[-1]
    return [Fit(anchor, local=local, half=h, sketch=numbers, send=False, keep=False, on=due) for h in (0, 1)]
