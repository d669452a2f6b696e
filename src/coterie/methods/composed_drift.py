"""`when: drift` of a composed method: clustered once, and again where clients' data changes (see `drift_alarm`)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.replies import Fitted
from coterie.methods.composed_kit import Kit
from coterie.methods.contract import Ask
from coterie.methods.drift_alarm import alarmed, found_elsewhere, told


def followed(state: Kit, reply: Fitted, cohort: Cohort, ask: Ask) -> tuple[Kit, Tensor]:
    """The state in which clients that another model fits better have moved there, and whose models count (n,).

    Where no model fits a client's data in two visits in a row, the next round clusters anew.
    """
    here = torch.ones(len(reply.ids), dtype=torch.bool)
    if not state.done:  # not clustered yet
        return state, here
    alarm = alarmed(state.last, reply.ids, reply.loss, state.worst) & state.labels.has(reply.ids)
    losses = state.last.put(reply.ids[~alarm], reply.loss[~alarm].float())
    worst = max(state.worst, float(reply.loss.mean()))
    who = reply.ids[alarm]
    moved = found_elsewhere(state.centers, state.labels, who, ask)
    left = who[~torch.isin(who, moved.ids)]
    again = left[torch.isin(left, state.alarmed)]
    if len(moved.ids):
        cohort.counted.append(told(moved.ids, len(state.centers), len(who), "another cluster's model fits, they move"))
    if len(again):
        cohort.counted.append(told(again, len(state.centers), len(who), "no model fits, all are clustered anew"))
    stay = losses.ids[~torch.isin(losses.ids, moved.ids)]
    state = dataclasses.replace(
        state,
        labels=state.labels.put(moved.ids, moved.values),
        last=losses.only(stay[:0] if len(again) else stay),
        worst=worst,
        alarmed=left,
        done=not len(again),
    )
    return state, here & ~torch.isin(reply.ids, moved.ids)
