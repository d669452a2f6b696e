"""Halves: how many clusters there are is measured, not told. No K, no threshold.

From time to time a client trains twice from the same model, once on each random half of its data, and sends a sketch
of the two updates (a look). They differ by sampling noise only, so the number of clusters is the one with which one
half predicts the other best (see `clustering.halves`). Every cluster is trained as in FedAvg. The first look is from
the common start, further ones from the clusters' models after 10, 20, 40, ... visits per client. A split is then tried
on held-out samples (see `halves_trial`). Clients whose data has changed are found by their losses and by another look,
and move (`halves_drift`). The server sees sketches, means and scores.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt

from coterie.clustering.averaging import weigh
from coterie.clustering.constraints import constrained
from coterie.clustering.halves import halves_evidence, sample_of, spread, told
from coterie.core.client_table import ByClient
from coterie.core.cohort import Cohort, Roster
from coterie.core.constructors import dataclass
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.replies import Fitted
from coterie.core.tasks import Evaluate
from coterie.core.types import STRICT
from coterie.methods.contract import Ask, Refusal, Releases
from coterie.methods.halves_drift import followed
from coterie.methods.halves_state import FIRST, Halved, check_pins
from coterie.methods.halves_visit import changed_since, due_looks, without, work_of
from coterie.methods.hard_clusters import averaged, joined_by_loss


def looks(rounds: int, everyone: bool) -> int:
    """How often a client is looked at: when it is met, and after 10, 20, 40, ... further visits, of which a round is at
    most one. Where not everyone takes part from the first round on, one more: a client joins the clusters by a vote."""
    count, until, round_ = 1 if everyone else 2, FIRST, FIRST + 1
    while round_ <= rounds:
        count, until = count + 1, 2 * until
        round_ += until + 1
    return count


@dataclass(frozen=True, config=STRICT)
class Halves:
    """Finds the clusters and their number by itself: one model, several, or one for each client."""

    look: PositiveInt = 50  # local steps of a look, on each half
    sketch: PositiveInt = 256  # numbers that stand for an update
    mu: NonNegativeFloat = 0.3  # the pull of a client's own model towards its cluster's
    smallest: PositiveInt = 1  # clients of a cluster; smaller ones join the most similar cluster
    pinned: bool = False  # clients of one given group (data.group) stay together, and apart from other groups
    trial: bool = True  # splits are tried on held-out samples, and so are personal models
    drift: bool = True  # clients whose loss jumps are measured at once, and move where another model fits
    local: Local = Local()
    paper: ClassVar[str] = "this library"
    releases: ClassVar[Releases | str] = Releases(
        signals=looks,
        sketches=True,
        votes=True,
        refused={
            "trial": Refusal(
                True,
                "clients send the scores of three models after every visit",
                "method.trial=false",
                "without trials, clusters are kept as they are found",
            )
        },
    )
    revision: ClassVar[int] = 3  # a draw is tried on, whichever is ahead: the mean of both may be better still
    later: ClassVar[dict[str, bool]] = {"trial": True, "drift": True}

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Halved:
        """One cluster, which everyone is measured from."""
        check_pins(self.pinned, roster)
        return Halved.begin(model.init(rng), model.part("all"), min(self.sketch, model.parameters), FIRST)

    def round(self, state: Halved, cohort: Cohort, ask: Ask) -> Halved:
        """Train every cluster. Clients not yet measured from their cluster's anchor are measured in the same visit."""
        before, state = state, self.admit(state.visited(len(cohort.ids)), cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        looks = due_looks(state, met, self.local, self.look)
        replies = ask([*work_of(state, met, self.local, self.mu), *looks])
        trained = [reply for reply in replies if isinstance(reply, Fitted)]
        again = partial(changed_since, before, self.local, self.look, ask)
        state, moved = followed(state, trained[0], cohort, ask, again, bool(looks)) if self.drift else (state, met[:0])
        new = self.learn(state, [without(reply, moved) for reply in trained[-2:]], cohort) if looks else state
        weights = weigh(trained[0], "size") * ~torch.isin(trained[0].ids, moved)
        new = averaged(new, trained[0], new.labels.at(trained[0].ids), weights)
        return new.judged(state, replies, weights, moved, self.pinned, cohort) if self.trial else new

    def learn(self, state: Halved, looks: list[Fitted], cohort: Cohort) -> Halved:
        """Cluster again wherever there are new looks; among many clients, a few new ones join what is there."""
        state, new = state.looked(*looks), looks[0].ids
        pinned = (self.pinned and cohort.roster.groups) or ByClient.empty()
        for group in state.group_of[state.labels.at(new)].unique().tolist():
            if not state.is_due(group, new):
                state = state.joined_nearest(group, new[~pinned.has(new)], cohort.rng)
                continue
            ids, pairs, n = state.of_group(group)
            now = len(state.labels.at(ids).unique())
            sampled = sample_of(len(ids), cohort.rng)
            evidence = halves_evidence(pairs[sampled, 0], pairs[sampled, 1], n[sampled])
            points = (pairs[:, 0] + pairs[:, 1]) / 2
            labels = spread(evidence.labels(evidence.keep_or_change(now)), sampled, points, n)
            labels = constrained(labels, points, n, pinned.at(ids, default=-1), self.smallest)
            state, k = state.regrouped(group, ids, labels), int(labels.max()) + 1
            cohort.counted.extend([told(evidence, k, now, len(ids), len(state.centers))] if k != now else [])
        return state

    def predictor(self, state: Halved) -> Evaluate:
        """With what serves clients best so far: their cluster's model, their own, or the mean of both."""
        return state.predicts(state.kind)

    def admit(self, state: Halved, cohort: Cohort, ask: Ask) -> Halved:
        """A newcomer joins the cluster whose model has the least loss on its data, or that its group is pinned to."""
        if self.pinned:
            state = state.joined_pins(cohort.roster.groups or ByClient.empty(), cohort.ids)
        return joined_by_loss(state, cohort.ids, ask)
