"""Halves: how many clusters there are is measured, not told. No K, no threshold.

From time to time a client trains twice from the same model, once on each random half of its data, and sends a sketch
of the two updates (a look). They differ by sampling noise only, so the number of clusters is the one with which one
half predicts the other best (see `clustering.halves`). Every cluster is trained as in FedAvg.
The first look is from the common start, further ones are from the clusters' models after 10, 20, 40, ... visits per
client. A split is then tried on held-out samples (see `halves_trial`). The server sees sketches, means and scores.
Clients whose loss jumps, because their data has changed, are measured at once, and move (see `halves_drift`).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from coterie.clustering.constraints import constrained
from coterie.clustering.halves import halves_evidence, sample_of, spread, told
from coterie.core.client_table import ByClient
from coterie.core.cohort import Cohort, Roster
from coterie.core.constructors import dataclass
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.replies import Evaluated, Fitted
from coterie.core.tasks import Evaluate
from coterie.core.types import STRICT
from coterie.methods.contract import Ask
from coterie.methods.halves_drift import as_they_are, followed
from coterie.methods.halves_state import Halved, check_pins
from coterie.methods.halves_visit import looks_of, work_of
from coterie.methods.hard_clusters import averaged, joined_by_loss

FIRST = 10  # visits per client until the second look


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
    revision: ClassVar[int] = 3  # a draw is tried on, whichever is ahead: the mean of both may be better still
    later: ClassVar[dict[str, bool]] = {"trial": True, "drift": True}

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Halved:
        """One cluster, which everyone is measured from."""
        check_pins(self.pinned, roster)
        return Halved.begin(model.init(rng), model.part("all"), min(self.sketch, model.parameters), FIRST)

    def round(self, state: Halved, cohort: Cohort, ask: Ask) -> Halved:
        """Train every cluster. Clients not yet measured from their cluster's anchor are measured in the same visit."""
        state = self.admit(state.visited(len(cohort.ids)), cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        due = met[:0] if state.refused else met[~state.looks.has(met)]
        looks = looks_of(state, due, self.local, self.look) if len(due) else []
        replies = ask([*work_of(state, met, self.local, self.mu), *looks])
        trained = [reply for reply in replies if isinstance(reply, Fitted)]
        new = self.learn(state, trained[-2], trained[-1], cohort) if looks and len(trained[-1].ids) else state
        new, weights = followed(new, trained[0], FIRST, cohort, ask) if self.drift else as_they_are(new, trained[0])
        new = averaged(new, trained[0], new.labels.at(trained[0].ids), weights)
        split = len(new.centers) > len(state.centers)
        if state.trial.on and (state.trial.of_split or not split):
            return new.tried([r for r in replies if isinstance(r, Evaluated)], trained[1], split, cohort)
        return new.next_trial(state, trained[0], split and not self.pinned) if self.trial else new  # pins are not tried

    def learn(self, state: Halved, first: Fitted, second: Fitted, cohort: Cohort) -> Halved:
        """Cluster again wherever there are new looks; among many clients, a few new ones join what is there."""
        state, pinned = state.looked(first, second), (self.pinned and cohort.roster.groups) or ByClient.empty()
        for group in state.group_of[state.labels.at(first.ids)].unique().tolist():
            if not state.is_due(group, first.ids):
                state = state.joined_nearest(group, first.ids[~pinned.has(first.ids)], cohort.rng)
                continue
            ids, looks, n = state.of_group(group)
            now = len(state.labels.at(ids).unique())
            sampled = sample_of(len(ids), cohort.rng)
            evidence = halves_evidence(looks[sampled, 0], looks[sampled, 1], n[sampled])
            points = (looks[:, 0] + looks[:, 1]) / 2
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
