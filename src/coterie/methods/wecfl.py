"""WeCFL: FeSEM with clients weighted by their size, in the clustering as in the mean.

Ma et al., On the Convergence of Clustered Federated Learning, 2022 (Algorithm 1, Eq. 3-4): lambda_i is the
client's share of the data; a client is represented by the parameters of its fully-connected layers (appendix B.1).
The server sees every client's model (its `features` part decides the cluster).

The authors' code is `papers/methods/wecfl.py`.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.clustering.averaging import Weighting
from coterie.core.parts import Part
from coterie.core.settings import STRICT, dataclass
from coterie.methods.contract import Releases, once
from coterie.methods.fesem import FeSEM


@dataclass(frozen=True, config=STRICT)
class WeCFL(FeSEM):
    """Weighted k-means over client models; the centroids are the cluster models."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187"
    releases: ClassVar[Releases | str] = Releases(signals=once, models=True, votes=True)

    features: Part = "classifier"  # all linear layers; head: the last one; or [names] of parameters
    kmeans_weights: Weighting = "size"  # lambda_i
    weights: Weighting = "size"
