"""Halves: how many clusters there are is measured, not told. No K, no threshold.

From time to time a client trains twice from the same model, once on each random half of its data, and sends a sketch
of the two updates (a look). They differ by sampling noise only, so the number of clusters is the one with which one
half predicts the other best (see `clustering.halves`). Every cluster is trained as in FedAvg.
The first look is from the common start, when a client is first met; further ones are from its cluster's model, after
10, 20, 40, ... visits per client: some differences show only once the easy part is learnt. Looks split clusters and
merge them again, on evidence. Where clusters are hardly larger than clients, each client also has its own model. The
server sees sketches and means of models.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from coterie.clustering.averaging import weigh
from coterie.clustering.halves import halves_evidence, sample_of, spread, told
from coterie.core.client_table import ByClient
from coterie.core.cohort import Cohort, Roster
from coterie.core.constructors import dataclass
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import Own, Pick
from coterie.core.replies import Fitted
from coterie.core.tasks import Evaluate, Fit
from coterie.core.types import STRICT
from coterie.methods.contract import Ask
from coterie.methods.halves_state import Halved
from coterie.methods.hard_clusters import averaged, joined_by_loss

PERSONAL, FIRST = "halves.personal", 10  # where a client keeps its own model; visits until the second look


@dataclass(frozen=True, config=STRICT)
class Halves:
    """Finds the clusters and their number by itself: one model, several, or one for each client."""

    look: PositiveInt = 50  # local steps of a look, on each half
    sketch: PositiveInt = 256  # numbers that stand for an update
    mu: NonNegativeFloat = 1.0  # the pull of a client's own model towards its cluster's
    local: Local = Local()
    paper: ClassVar[str] = "this library"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Halved:
        """One cluster, which everyone is measured from."""
        return Halved.begin(model.init(rng), model.part("all"), min(self.sketch, model.parameters), FIRST)

    def round(self, state: Halved, cohort: Cohort, ask: Ask) -> Halved:
        """Train every cluster; who has not been looked at from its cluster's anchor is looked at on the way."""
        state = joined_by_loss(state.visited(len(cohort.ids)), cohort.ids, ask)
        start = Pick(state.centers, state.labels)
        tasks = [Fit(start, local=self.local)]
        tasks += [dataclasses.replace(self.own(start), on=cohort.ids)] if state.personal else []
        due = cohort.ids[state.labels.has(cohort.ids) & ~state.looks.has(cohort.ids)]
        looks = self.looks(state, due) if len(due) else []
        reply, *rest = ask([*tasks, *looks])
        if looks and len(rest[-1].ids):
            state = self.learn(state, rest[-2], rest[-1], cohort)
        return averaged(state, reply, state.labels.at(reply.ids), weigh(reply, "size"))

    def own(self, start: Pick) -> Fit:
        """A client's own model, held near its cluster's."""
        own, slot = Own(PERSONAL, start), f"{PERSONAL}.optimizer"
        return Fit(own, anchor=start, mu=self.mu, local=self.local, save=PERSONAL, send=False, optimizer_slot=slot)

    def looks(self, state: Halved, due: Tensor) -> list[Fit]:
        """The same training on either half; nothing of it is kept, and only sketches are sent."""
        anchor = Pick(state.anchors, ByClient(due, state.group_of[state.labels.at(due)]))
        local = dataclasses.replace(self.local, epochs=None, steps=self.look, keep_optimizer=False)
        numbers = state.looks.values.shape[-1]
        return [Fit(anchor, local=local, half=h, sketch=numbers, send=False, keep=False, on=due) for h in (0, 1)]

    def learn(self, state: Halved, first: Fitted, second: Fitted, cohort: Cohort) -> Halved:
        """Cluster again wherever there are new looks."""
        state = state.looked(first, second)
        for group in state.group_of[state.labels.at(first.ids)].unique().tolist():
            ids, looks, n = state.of_group(group)
            now = len(state.labels.at(ids).unique())
            sampled = sample_of(len(ids), cohort.rng)
            evidence = halves_evidence(looks[sampled, 0], looks[sampled, 1], n[sampled])
            k = evidence.keep_or_change(now)
            labels = spread(evidence.labels(k), sampled, looks.mean(1), n)
            state = state.regrouped(group, ids, labels)
            if k != now:
                cohort.counted.append(told(evidence, k, now, len(ids), len(state.centers)))
        return state.with_own_models_where_few()

    def predictor(self, state: Halved) -> Evaluate:
        """With the cluster's model, or with a client's own."""
        cluster = Pick(state.centers, state.labels)
        return Evaluate((Own(PERSONAL, cluster) if state.personal else cluster,))

    def admit(self, state: Halved, cohort: Cohort, ask: Ask) -> Halved:
        """A newcomer joins the cluster whose model has the least loss on its data."""
        return joined_by_loss(state, cohort.ids, ask)
