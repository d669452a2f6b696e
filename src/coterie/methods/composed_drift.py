"""`when: drift` of a composed method: clustered once, and again where clients' data changes (see `drift_alarm`).

A client's two halves are measured from the first model at its first visit after the clustering, and again where its
loss has risen a little: has its data changed since (see `clustering.halves_in_time`)?
"""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch import Tensor

from coterie.clustering.halves_in_time import has_changed
from coterie.core.client_table import ByClient
from coterie.core.cohort import Cohort
from coterie.core.errors import NoAnswerError
from coterie.core.local import Local
from coterie.core.references import All
from coterie.core.replies import Fitted
from coterie.core.tasks import Fit
from coterie.methods.composed_kit import Kit
from coterie.methods.contract import Ask
from coterie.methods.drift_alarm import alarmed, found_elsewhere, suspected, told

LOOK, SKETCH = 50, 256  # local steps on each half, and numbers that stand for an update, as in Halves


def looked(state: Kit, ids: Tensor, local: Local, ask: Ask) -> ByClient:
    """The updates on both halves (n, 2, d) of those of these clients that answer, from the first model."""
    size = min(SKETCH, len(state.anchor))
    local = dataclasses.replace(local, epochs=None, steps=LOOK, keep_optimizer=False)
    tasks = [
        Fit(All(state.anchor), local=local, half=half, sketch=size, send=False, keep=False, on=ids) for half in (0, 1)
    ]
    try:
        replies = ask(tasks) if len(ids) else []
    except NoAnswerError:
        replies = []
    sent = [r.sketch for r in replies if isinstance(r, Fitted) and r.sketch is not None]
    return (
        ByClient(replies[0].ids, torch.stack(sent, 1))
        if sent
        else ByClient(ids[:0], state.anchor.new_empty(0, 2, size))
    )


def changed_since(state: Kit, local: Local, ask: Ask, ids: Tensor) -> Tensor:
    """Those of these clients whose data has changed since they were looked at."""
    now = looked(state, ids[state.looks.has(ids)], local, ask)
    return now.ids[has_changed(state.looks.at(now.ids), now.values)]


def followed(state: Kit, reply: Fitted, local: Local, cohort: Cohort, ask: Ask) -> tuple[Kit, Tensor]:
    """The state in which clients that another model fits better have moved there, and whose models count (n,).

    Where no model fits a client's data in two visits in a row, the next round clusters anew.
    """
    here = torch.ones(len(reply.ids), dtype=torch.bool)
    if not state.done:  # not clustered yet
        return state, here
    alarm = alarmed(state.last, reply.ids, reply.loss, state.worst) & state.labels.has(reply.ids)
    rising = suspected(state.last, reply.ids, reply.loss, state.worst) & state.labels.has(reply.ids) & ~alarm
    losses = state.last.put(reply.ids[~alarm], reply.loss[~alarm].float())
    worst = max(state.worst, float(reply.loss.mean()))
    who, asked = reply.ids[alarm], int(alarm.sum() + rising.sum())
    changed = partial(changed_since, state, local, ask)
    moved = found_elsewhere(state.centers, state.labels, who, reply.ids[rising], ask, changed)
    left = who[~torch.isin(who, moved.ids)]
    again = left[torch.isin(left, state.alarmed)]
    if len(moved.ids):
        cohort.counted.append(told(moved.ids, len(state.centers), asked, "another cluster's model fits, they move"))
    if len(again):
        cohort.counted.append(told(again, len(state.centers), asked, "no model fits, all are clustered anew"))
    stay = losses.ids[~torch.isin(losses.ids, moved.ids)]
    kept = state.looks.only(state.looks.ids[~torch.isin(state.looks.ids, moved.ids)])
    fresh = looked(state, reply.ids[~kept.has(reply.ids)], local, ask)
    state = dataclasses.replace(
        state,
        labels=state.labels.put(moved.ids, moved.values),
        last=losses.only(stay[:0] if len(again) else stay),
        worst=worst,
        alarmed=left,
        done=not len(again),
        looks=kept.put(fresh.ids, fresh.values),
    )
    return state, here & ~torch.isin(reply.ids, moved.ids)
