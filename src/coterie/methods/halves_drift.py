"""How Halves follows data that changes: clients whose data has changed move, or everyone is looked at again."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.replies import Fitted
from coterie.methods.contract import Ask
from coterie.methods.drift_alarm import JUMP, Changed, alarmed, found_elsewhere, rescaled, suspected, told
from coterie.methods.halves_state import FIRST, Halved
from coterie.methods.halves_trial import BOTH, PERSONAL


def followed(
    state: Halved, reply: Fitted, cohort: Cohort, ask: Ask, changed: Changed, looking: bool = False
) -> tuple[Halved, Tensor]:
    """The state in which clients whose data has changed are where it fits, and who has moved.

    A client that has moved was trained from the model of its old cluster: this model counts nowhere. Its looks were
    from there too; it is looked at again from where it is, which confirms or corrects the move. Where no model fits a
    client's data in two visits, all clusters are looked at again. Where personal models serve, nobody is asked: they
    follow by being trained, and a cluster only pulls on them.
    """
    ahead = state.kind in (PERSONAL, BOTH)
    if ahead and not state.trial.on:
        return state, reply.ids[:0]
    known, jump = state.losses, JUMP
    # Losses of other models, or on other samples, may rise for that; while clients are looked at, clusters change.
    otherwise = looking or state.under != state.how_trained
    if otherwise:
        known, jump = rescaled(known, reply.ids, reply.loss), JUMP**2
    alarm = alarmed(known, reply.ids, reply.loss, state.worst, jump)
    rising = suspected(known, reply.ids, reply.loss, state.worst)
    if ahead or looking:  # clusters fit their clients badly so far, or change now: two halves decide of everyone
        alarm, rising = torch.zeros_like(alarm), alarm | rising
    rising &= ~alarm
    calm = ~alarm | otherwise  # then a rise that no other model explains is no sign of new data
    losses = known.put(reply.ids[calm], reply.loss[calm].float())
    worst = max(state.worst, float(reply.loss.mean()))
    state = dataclasses.replace(state, losses=losses, worst=worst, under=state.how_trained)
    who, asked = reply.ids[alarm], int(alarm.sum() + rising.sum())
    moved = found_elsewhere(state.centers, state.labels, who, reply.ids[rising], ask, changed, jump)
    gone = torch.isin(losses.ids, moved.ids)
    looks = state.looks.only(state.looks.ids[~torch.isin(state.looks.ids, moved.ids)])
    state = dataclasses.replace(state, losses=losses.only(losses.ids[~gone]), looks=looks)
    if len(moved.ids):
        state = dataclasses.replace(state, labels=state.labels.put(moved.ids, moved.values), drifted=True)
        cohort.counted.append(told(moved.ids, len(state.centers), asked, "another cluster's model fits, they move"))
    left = who[:0] if otherwise else who[~torch.isin(who, moved.ids)]
    again = left[torch.isin(left, state.alarmed)]
    if len(again):
        cohort.counted.append(told(again, len(state.centers), asked, "no model fits, all are looked at again"))
        state = dataclasses.replace(
            state.to_be_looked_at(FIRST), drifted=True, losses=state.losses.only(state.losses.ids[:0])
        )
    return dataclasses.replace(state, alarmed=left), moved.ids
