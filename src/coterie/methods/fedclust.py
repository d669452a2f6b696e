"""FedClust: one clustering of the last layer's weights after a first local training, then FedAvg per cluster.

Islam et al., FedClust: Optimizing Federated Learning on Non-IID Data through Weight-Driven Client Clustering, 2024.
Everyone trains the first model for a visit; the final layers are compared by Euclidean distance and agglomerated; every
cluster starts at the mean of its members' models. That is FL+HC (`flhc`) without rounds before the clustering, on a
part of the model. A newcomer trains from the same first model and joins the cluster of the nearest mean.
The server sees the single models of the clustering round, of which the last layer decides; later, means are enough.
Open in what was published: the linkage (average here) and the value of lambda, which depends on the data: without
`threshold` the dendrogram is cut at k clusters. Only the abstract and a description were available, no code and no
tables: no cell of the paper is claimed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import NonNegativeInt

from coterie.clustering.linkage import Linkage
from coterie.core.model import Model
from coterie.core.parts import Part
from coterie.core.settings import STRICT, dataclass
from coterie.core.tables import Roster
from coterie.methods.flhc import FLHC, Hierarchy


@dataclass(frozen=True, config=STRICT)
class FedClust(FLHC):
    """One clustering of the last layer's weights after a first local training, then FedAvg per cluster."""

    paper: ClassVar[str] = "Islam et al. 2024, arXiv:2403.04144"

    warmup: NonNegativeInt = 0  # rounds of FedAvg before the clustering
    linkage: Linkage = "average"
    features: Part = "head"  # what is compared: the last layer; or another part, as in WeCFL

    def init(self, model: Model, roster: Roster, rng: np.random.Generator) -> Hierarchy:
        """One random model."""
        return replace(super().init(model, roster, rng), features=model.part(self.features))
