"""IFCA as in its authors' code, where clients have equal weights, and as the authors of CAM run it.

In the latter, a client chooses the center with the most correct answers (choose_by: accuracy).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from coterie.clustering.averaging import Weighting
from coterie.core.settings import STRICT, dataclass
from coterie.core.tasks import Best
from coterie.methods.ifca import IFCA


@dataclass(frozen=True, config=STRICT)
class IFCAAuthors(IFCA):
    """IFCA as in its authors' code: clients have equal weights, regardless of size."""

    weights: Weighting = "equal"
    choose_by: Literal["loss", "accuracy"] = "loss"  # accuracy: as the authors of CAM run it

    def best(self, centers: Tensor) -> Best:
        """The center of least loss, or of most correct answers, on a client's own training data."""
        return Best(centers, by=self.choose_by)
