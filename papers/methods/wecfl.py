"""WeCFL as in its authors' code: FeSEM as they run it, with clients weighted by their size in the clustering too.

Fresh k-means each round on the weights of the last layer; in 2022 a size counted batches (size_unit: batches).
"""

from __future__ import annotations

from typing import ClassVar

from coterie.clustering.averaging import Weighting
from coterie.core.settings import STRICT, dataclass
from papers.methods.fesem import FeSEMAuthors


@dataclass(frozen=True, config=STRICT)
class WeCFLAuthors(FeSEMAuthors):
    """WeCFL as in its authors' code: a new weighted k-means each round, on the last layer's weights."""

    paper: ClassVar[str] = "Ma et al. 2022, arXiv:2202.06187"

    kmeans_weights: Weighting = "size"  # lambda_i
