"""How Halves follows data that changes: clients whose data has changed move, or everyone is looked at again."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from coterie.clustering.averaging import weigh
from coterie.core.cohort import Cohort
from coterie.core.replies import Fitted
from coterie.methods.contract import Ask
from coterie.methods.drift_alarm import JUMP, alarmed, found_elsewhere, rescaled, told
from coterie.methods.halves_state import Halved
from coterie.methods.halves_trial import BOTH, PERSONAL


def as_they_are(state: Halved, reply: Fitted) -> tuple[Halved, Tensor]:
    """Nobody moves."""
    return state, weigh(reply, "size")


def followed(state: Halved, reply: Fitted, first: float, cohort: Cohort, ask: Ask) -> tuple[Halved, Tensor]:
    """The state in which clients whose data has changed are where it fits, and the weights of the trained models.

    A client that has moved was trained from the model of its old cluster: this model counts nowhere. Its looks were
    from there too; it is looked at again from where it is, which confirms or corrects the move. Where no model fits a
    client's data in two visits, all clusters are looked at again. Where personal models serve, nobody is asked: they
    follow by being trained, and a cluster only pulls on them.
    """
    if state.kind in (PERSONAL, BOTH):
        return as_they_are(state, reply)
    weights = weigh(reply, "size")
    known, jump = state.losses, JUMP
    changed = state.under != state.how_trained  # losses of other models, or on other samples: they may rise for that
    if changed:
        known, jump = rescaled(known, reply.ids, reply.loss), JUMP**2
    alarm = alarmed(known, reply.ids, reply.loss, state.worst, jump)
    calm = ~alarm | changed  # then a rise that no other model explains is no sign of new data
    losses = known.put(reply.ids[calm], reply.loss[calm].float())
    worst = max(state.worst, float(reply.loss.mean()))
    state = dataclasses.replace(state, losses=losses, worst=worst, under=state.how_trained)
    if not bool(alarm.any()):
        return dataclasses.replace(state, alarmed=state.alarmed[:0]), weights
    who = reply.ids[alarm]
    moved = found_elsewhere(state.centers, state.labels, who, ask, jump)
    gone = torch.isin(losses.ids, moved.ids)
    looks = state.looks.only(state.looks.ids[~torch.isin(state.looks.ids, moved.ids)])
    state = dataclasses.replace(state, losses=losses.only(losses.ids[~gone]), looks=looks)
    if len(moved.ids):
        state = dataclasses.replace(state, labels=state.labels.put(moved.ids, moved.values))
        cohort.counted.append(told(moved.ids, len(state.centers), len(who), "another cluster's model fits, they move"))
    left = who[:0] if changed else who[~torch.isin(who, moved.ids)]
    again = left[torch.isin(left, state.alarmed)]
    if len(again):
        cohort.counted.append(told(again, len(state.centers), len(who), "no model fits, all are looked at again"))
        state = dataclasses.replace(state.to_be_looked_at(first), losses=state.losses.only(state.losses.ids[:0]))
    return dataclasses.replace(state, alarmed=left), weights * ~torch.isin(reply.ids, moved.ids)
