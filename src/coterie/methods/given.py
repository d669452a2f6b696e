"""Given: the clusters are given by the user (a region, a device, a hospital's type); FedAvg in each.

A table says them in a column: data.group=region. In Python: Federation.from_arrays(..., groups=["north", "south"]).
Cluster 0 is the first of the groups' sorted names. All clusters start from the same random model, and each becomes the
size-weighted mean of its members' models. The server needs these means only (secure aggregation possible in groups).
A client of unknown group, during training or after it, is in the cluster whose model has the least loss on its data,
which is asked anew whenever it takes part. Over a network the server does not know the groups: it is refused there.
Oracle is this with the true clusters of a simulation, for comparison only: what a method is below it, it loses by its
clusters. It needs data that was divided into clusters by a partition (rotated, shifted, ...), or
Federation.from_arrays(..., truth=[...]). Where clients are mixtures there is no true cluster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from coterie.clustering.averaging import Weighting, weigh
from coterie.core.errors import CoterieError
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import Pick
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import ByClient, Cohort, Roster
from coterie.core.tasks import Evaluate, Fit
from coterie.methods.contract import Ask
from coterie.methods.hard_clusters import Clusters, assigned, averaged, joined_by_loss


@dataclass(frozen=True, config=STRICT)
class Given:
    """Clusters that you give (a column of a table, a list); FedAvg in each."""

    paper: ClassVar[str] = "a baseline"

    local: Local = Local()
    weights: Weighting = "size"  # n_k / n, within a cluster

    missing: ClassVar[str] = (
        "method.name: given: nobody has said which group a client is in. Name the table's column of groups "
        "(data.group=COLUMN, csv and parquet) or give Federation.from_arrays(..., groups=[...]); "
        "over a network the server does not know groups"
    )

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Clusters:
        """The same random model for every group."""
        known = self.known(roster)
        if known is None or not len(known.ids):
            raise CoterieError(self.missing, code="groups-missing")
        return Clusters(model.init(rng).repeat(int(known.values.max()) + 1, 1), ByClient.empty(), model.part("all"))

    def round(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """FedAvg in each cluster."""
        known = self.known(cohort.roster)
        again = cohort.ids if known is None else cohort.ids[~known.has(cohort.ids)]
        settled = state.labels.ids[~torch.isin(state.labels.ids, again)]
        state = self.admit(replace(state, labels=state.labels.only(settled)), cohort, ask)
        reply = ask(Fit(Pick(state.centers, state.labels), local=self.local))
        return averaged(state, reply, state.labels.at(reply.ids), weigh(reply, self.weights))

    def predictor(self, state: Clusters) -> Evaluate:
        """With the cluster's model."""
        return state.predictor()

    def admit(self, state: Clusters, cohort: Cohort, ask: Ask) -> Clusters:
        """A newcomer joins its group or, if that is unknown, the cluster whose model has the least loss on its data."""
        known = self.known(cohort.roster)
        if known is not None:
            found = known.only(cohort.ids)  # anew in every round: what is true of a client may change
            state = assigned(with_room(state, found), found.ids, found.values)
        return joined_by_loss(state, cohort.ids, ask)

    def known(self, roster: Roster) -> ByClient | None:
        """The cluster of each client of known group."""
        return roster.groups


def with_room(state: Clusters, found: ByClient) -> Clusters:
    """The state with a model for each of these clusters; one that nobody has been in starts from the mean of all."""
    more = int(found.values.max()) + 1 - len(state.centers) if len(found.ids) else 0
    if more <= 0:
        return state
    start = state.centers.mean(0, keepdim=True).expand(more, -1)
    return replace(state, centers=torch.cat([state.centers, start]))


@dataclass(frozen=True, config=STRICT)
class Oracle(Given):
    """The true clusters of a simulated federation; FedAvg in each (for comparison only)."""

    missing: ClassVar[str] = (
        "method.name: oracle: these clients have no true clusters that are known. A simulation has them where a "
        "partition makes them (data.partition.name=rotated, ...) or with Federation.from_arrays(..., truth=[...]); "
        "mixtures, your own data and clients over a network do not"
    )

    def known(self, roster: Roster) -> ByClient | None:
        """The true cluster of each client."""
        return roster.truth
