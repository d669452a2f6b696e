"""Hidden clusters by what images look like: corrupted in different ways, or labels that look different."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, TestSplit, dataclass
from coterie.data.corruptions import Corruption, Severity, corrupted
from coterie.data.dataset import Dataset
from coterie.data.domain import Domain
from coterie.data.federation import Federation
from coterie.data.partitions.clusterwise import seen
from coterie.data.transforms import turned, want_labels


@dataclass(frozen=True, config=STRICT)
class Corrupted:
    """Hidden clusters by corruption: the images of each cluster are noisy, blurred, pale, ... or as they are."""

    paper: ClassVar[str] = "Hendrycks and Dietterich 2019, arXiv:1903.12261 (kinds of corruption; strengths are ours)"

    clients: PositiveInt = 40
    kinds: Annotated[tuple[Corruption, ...], Field(min_length=1)] = ("none", "noise", "blur", "contrast")  # per cluster
    severity: Severity | tuple[Severity, ...] = 3  # 1 to 5, for all or one per cluster
    reuse: bool = False  # every cluster has all images; otherwise each image once
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Corrupt, then deal evenly."""
        levels = self.severity if isinstance(self.severity, tuple) else (self.severity,) * len(self.kinds)
        if len(levels) != len(self.kinds):
            raise CoterieError(
                f"data.partition.severity: {len(levels)} for {len(self.kinds)} kinds; write one, or one per kind",
                code="config-invalid-value",
            )
        views = [corrupted(data, k, s, int(rng.integers(2**31))) for k, s in zip(self.kinds, levels, strict=True)]
        said = ", ".join(k if k == "none" else f"{k} {s}" for k, s in zip(self.kinds, levels, strict=True))
        return seen(data, views, self.clients, self.reuse, self.test, rng, "kinds", f"corrupted: {said}")


@dataclass(frozen=True, config=STRICT)
class RotatedByLabel:
    """Hidden clusters by P(x|y): cluster k sees the images of label y turned by angle number y + k."""

    paper: ClassVar[str] = "this library (P(x|y) alone differs: every cluster sees every angle, but of other labels)"

    clients: PositiveInt = 40
    angles: Annotated[tuple[float, ...], Field(min_length=1)] = (0.0, 90.0, 180.0, 270.0)  # degrees; as many clusters
    reuse: bool = False  # every cluster has all images; otherwise each image once
    test: TestSplit = "auto"  # a share held out, official, or auto: official where there is one, else 0.2

    def __call__(self, data: Dataset, rng: np.random.Generator) -> Federation:
        """Turn by label, then deal evenly."""
        want_labels(data, "label")
        every = [turned(data, angle) for angle in self.angles]
        looks = [torch.rot90(view.x, view.turns, (-2, -1)) for view in every]
        views = [self._view(data, looks, cluster) for cluster in range(len(looks))]
        name = f"each label turned by one of {', '.join(f'{a:g}' for a in self.angles)} degrees"
        return seen(data, views, self.clients, self.reuse, self.test, rng, "angles", name)

    def _view(self, data: Dataset, looks: list[torch.Tensor], cluster: int) -> Domain:
        x, which = data.x.clone(), (data.y + cluster) % len(looks)
        for number, look in enumerate(looks):
            x[which == number] = look[which == number]
        return Domain(x, data.y, data.scale)
