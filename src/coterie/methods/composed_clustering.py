"""The lower level of a composed method (WeCFL's Eq. 3): which representations belong together."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator
from torch import Tensor
from torch.nn import functional

from coterie.clustering.kmeans import fresh_kmeans
from coterie.clustering.linkage import Linkage, agglomerate, greedy_merge, split_all
from coterie.clustering.similarity import cosines, distances, edc_features, madc
from coterie.core.cohort import Cohort
from coterie.core.constructors import dataclass
from coterie.core.types import STRICT
from coterie.methods.cluster_count import ClusterCount, count


@dataclass(frozen=True, config=STRICT)
class LowerLevel:
    """A distance, a clustering, and how many clusters it makes."""

    distance: Literal["euclidean", "cosine", "edc", "madc"] = "euclidean"
    clustering: Literal["kmeans", "agglomerative", "merge", "bipartition", "argmin"] = "kmeans"
    k: ClusterCount = 4
    threshold: float | None = None  # agglomerative: a distance; merge, bipartition: a cosine
    linkage: Linkage = "complete"

    @model_validator(mode="after")
    def _fits_together(self) -> LowerLevel:
        if self.by_cosine and self.threshold is None:
            raise ValueError(
                f"clustering '{self.clustering}' needs a threshold: the cosine above which clients are similar"
            )
        if self.by_cosine and self.distance not in ("cosine", "euclidean"):
            raise ValueError(f"clustering '{self.clustering}' uses cosines; distance '{self.distance}' does not apply")
        if self.distance == "madc" and self.clustering != "agglomerative":
            raise ValueError("distance 'madc' is a matrix, not coordinates: use clustering 'agglomerative'")
        if self.linkage == "ward" and self.distance != "euclidean":
            raise ValueError("linkage 'ward' is defined for distance 'euclidean' only")
        return self

    @property
    def by_cosine(self) -> bool:
        """Whether the clustering uses cosines only."""
        return self.clustering in ("merge", "bipartition")

    @property
    def limit(self) -> int | None:
        """The most clusters there can be, where that is given."""
        by_number = self.clustering == "kmeans" or (self.clustering == "agglomerative" and self.threshold is None)
        return self.k if by_number and isinstance(self.k, int) else None

    def cluster(self, points: Tensor, weights: Tensor, cohort: Cohort) -> Tensor:
        """Labels (n,) by the chosen distance and clustering."""
        if self.clustering == "argmin":
            return points.argmin(1)
        if self.clustering == "merge":
            return greedy_merge(cosines(points), self.threshold or 0.0)
        if self.clustering == "bipartition":
            return split_all(cosines(points), self.threshold or 0.0)
        fixed = self.threshold is not None and self.clustering == "agglomerative"
        unit = functional.normalize(points) if self.distance != "euclidean" else points
        k = 1 if fixed else count(unit, self.k, weights, cohort)
        if self.clustering == "kmeans":
            return fresh_kmeans(edc_features(points, k) if self.distance == "edc" else unit, k, weights, cohort.rng)
        match self.distance:
            case "madc":
                matrix = madc(points)
            case "edc":
                matrix = distances(edc_features(points, k if not fixed else len(points)), "euclidean")
            case "cosine" | "euclidean":
                matrix = distances(points, self.distance)
        return agglomerate(matrix, k=k, threshold=self.threshold if fixed else None, linkage=self.linkage)
