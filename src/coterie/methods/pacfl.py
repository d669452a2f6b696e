"""PACFL: clients clustered once, before training, by the angles between the subspaces of their raw data.

Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles
Between Client Data Subspaces, AAAI 2023 (arXiv:2209.10526). A client sends the first `rank` left singular vectors of
its inputs, not centred; the server agglomerates the matrix of angles, up to beta (`threshold`, degrees) or to k
clusters; FedAvg per cluster from the common w0. A newcomer joins the cluster at the least mean angle to its members.
The server sees the singular vectors, which resemble mean images, of every client, and later means of models.
Open or different: the paper's text was not available, and no cell of its tables is claimed. Its measures are the least
principal angle and the sum of angles between corresponding vectors (`angle`), without signs here. `classes` takes an
SVD per label, as the authors' scripts do. Inputs of more than `inputs` numbers are projected, to keep answers small.
The authors' linkage weighs merged clusters equally, this one members; they train a newcomer before its test.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.clustering.averaging import Weighting, weigh
from coterie.clustering.linkage import Linkage, agglomerate
from coterie.clustering.similarity import Angle, subspace_angles
from coterie.core.local import Local
from coterie.core.model import Model
from coterie.core.references import All, Pick
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Cohort, Roster
from coterie.core.tasks import Describe, Evaluate, Fit
from coterie.methods.contract import Ask, Releases, admitted
from coterie.methods.hard_clusters import DescribedClusters, averaged
from coterie.methods.k import K, at_most


@dataclass(frozen=True, config=STRICT)
class PACFL:
    """Clusters found once, before training, by the angles between clients' data subspaces; FedAvg in each."""

    paper: ClassVar[str] = "Vahidian et al. 2023, arXiv:2209.10526"
    releases: ClassVar[Releases | str] = (
        "every client sends thousands of numbers on its raw data: noise would leave nothing of them"
    )

    k: PositiveInt = 4
    threshold: PositiveFloat | None = None  # beta, in degrees: cut the dendrogram there instead of at k clusters
    rank: PositiveInt = 3  # p, singular vectors of a client (or of each of its labels)
    angle: Angle = "smallest"
    classes: NonNegativeInt = 0  # an SVD for each of so many labels; 0: one of all samples, without labels
    inputs: PositiveInt = 1024  # numbers of a sample, at most: longer ones are projected
    linkage: Linkage = "average"
    cluster_at_most: PositiveInt = 1000
    local: Local = Local()
    weights: Weighting = "size"

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> DescribedClusters:
        """w0; the clusters come with the first round."""
        K(self.k).check(roster)
        return DescribedClusters.fresh(model.init(rng), model.part("all"), self.describe().length)

    @property
    def places_by(self) -> str:
        """Labels, where they are described each."""
        return "labels" if self.classes else "inputs"

    def describe(self, on: Tensor | None = None) -> Describe:
        """What a client is asked about its data."""
        return Describe("subspace", self.inputs, rank=self.rank, classes=self.classes, on=on)

    def round(self, state: DescribedClusters, cohort: Cohort, ask: Ask) -> DescribedClusters:
        """Clusters first; then FedAvg in each."""
        if not len(state.labels.ids):
            state = self.cluster(state, cohort, ask)
        state = admitted(self, state, cohort, ask)
        met = cohort.ids[state.labels.has(cohort.ids)]
        reply = ask(Fit(Pick(state.centers, state.labels), local=self.local, on=met))
        return averaged(state, reply, reply.chosen, weigh(reply, self.weights))

    def cluster(self, state: DescribedClusters, cohort: Cohort, ask: Ask) -> DescribedClusters:
        """Everyone describes its data; the dendrogram of the angles is cut once and for all."""
        K(self.k).wait_for_enough(cohort)
        reply = ask(self.describe(at_most(self.cluster_at_most, cohort.roster.ids, cohort)))
        if self.threshold is None:
            K(self.k).enough_answers(reply.ids, cohort)
        far = self.far(reply.rows, reply.rows)
        labels = agglomerate((far + far.T) / 2, k=self.k, threshold=self.threshold, linkage=self.linkage)
        same = state.centers[:1].repeat(int(labels.max()) + 1, 1)
        return dataclasses.replace(state, centers=same).put(reply.ids, labels, reply.rows)

    def far(self, rows: Tensor, others: Tensor) -> Tensor:
        """The angles between these clients' subspaces and others."""
        bases, against = (one.reshape(len(one), -1, self.inputs) for one in (rows, others))
        return subspace_angles(bases, against, self.angle, orthonormal=not self.classes)

    def predictor(self, state: DescribedClusters) -> Evaluate:
        """A client predicts with its cluster's model (before there are clusters: with w0)."""
        return state.predictor() if len(state.labels.ids) else Evaluate((All(state.centers[0]),))

    def admit(self, state: DescribedClusters, cohort: Cohort, ask: Ask) -> DescribedClusters:
        """A newcomer, with labels or without, joins the cluster at the least mean angle to its members."""
        if not len(unmet := state.unmet(cohort.ids)) or not len(state.labels.ids):
            return state
        reply = ask(self.describe(unmet))
        means = state.mean_by_cluster(self.far(state.rows.values, reply.rows))
        return state.put(reply.ids, means.argmin(0), reply.rows)
