"""Generated federations whose hidden truth is known exactly."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from coterie.data.federation import Domain, Federation, Ragged
from coterie.domains import STRICT, ShareBelowOne


@dataclass(frozen=True, config=STRICT)
class SyntheticRegression:
    """Linear regression y = <x, theta_s> + noise, one hidden theta_s per cluster."""

    paper: ClassVar[str] = "Ruan and Joe-Wong 2022, arXiv:2112.06053 (section 5, synthetic data)"

    clients: PositiveInt = 40
    clusters: PositiveInt = 4
    dimension: PositiveInt = 10
    samples: tuple[PositiveInt, PositiveInt] = (100, 200)  # per client, uniform between the two
    variance: PositiveFloat = 10.0  # of the entries of theta_s
    noise: NonNegativeFloat = 1.0
    test: ShareBelowOne = 0.2

    def __call__(self, rng: np.random.Generator) -> Federation:
        """Draw one: client i belongs to cluster i * clusters // clients."""
        theta = rng.normal(0, self.variance**0.5, (self.clusters, self.dimension))
        low, high = min(self.samples), max(self.samples)
        sizes = rng.integers(max(low, 1), max(high, 1) + 1, self.clients)
        truth = np.arange(self.clients) * self.clusters // self.clients
        x = rng.normal(size=(int(sizes.sum()), self.dimension))
        y = np.einsum("nd,nd->n", x, theta[np.repeat(truth, sizes)]) + rng.normal(0, self.noise, len(x))
        rows = np.split(np.arange(len(x)), np.cumsum(sizes)[:-1])
        held = [min(round(self.test * len(row)), len(row) - 1) for row in rows]
        return Federation(
            (Domain(torch.from_numpy(x).float(), torch.from_numpy(y).float()[:, None]),),
            train=Ragged.of([row[h:] for row, h in zip(rows, held, strict=True)]),
            test=Ragged.of([row[:h] for row, h in zip(rows, held, strict=True)]),
            kind="regression",
            outputs=1,
            truth=truth.astype(np.int64),
            name="synthetic-regression",
        )
