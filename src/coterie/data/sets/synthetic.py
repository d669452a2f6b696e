"""Generated federations whose hidden truth is known exactly."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from coterie.core.settings import STRICT, ShareBelowOne, dataclass
from coterie.data.federation import Domain, Federation, Ragged
from coterie.data.partitions.dealing import Ints, held_out
from coterie.data.partitions.mixture import Pattern, halves, parts, weights


def _splits(owner: Ints, key: Ints, clients: int, test: float, rng: np.random.Generator) -> tuple[Ragged, Ragged]:
    """Training and test rows of each client, as much of each key in both."""
    held, rows = held_out(owner, key, clients, test, rng), np.arange(len(owner))
    return Ragged.by(owner[~held], rows[~held], clients), Ragged.by(owner[held], rows[held], clients)


@dataclass(frozen=True, config=STRICT)
class Synthetic:
    """Synthetic(alpha, beta): 60 features, 10 classes, every client its own logistic model; no hidden clusters."""

    paper: ClassVar[str] = "Shamir et al. 2014; Li et al. 2020, arXiv:1812.06127 (section 5.1)"

    clients: PositiveInt = 100
    alpha: NonNegativeFloat = 1.0  # the deviation of the mean of a client's weights (its labels do not depend on it)
    beta: NonNegativeFloat = 1.0  # how much clients' inputs differ: the deviation of the mean of a client's inputs
    iid: bool = False  # one model for all, inputs alike: the paper's Synthetic-IID
    features: PositiveInt = 60
    classes: PositiveInt = 10
    test: ShareBelowOne = 0.1

    def __call__(self, rng: np.random.Generator) -> Federation:
        """Sizes are lognormal(4, 2) + 50; y = argmax(W x + b)."""
        n, d, c = self.clients, self.features, self.classes
        sizes = rng.lognormal(4.0, 2.0, n).astype(np.int64) + 50
        owner = np.repeat(np.arange(n), sizes)
        models = np.zeros(n, dtype=np.int64) if self.iid else np.arange(n)
        means = np.zeros(n) if self.iid else rng.normal(0.0, self.alpha, n)
        weight = rng.normal(means[:, None, None], 1.0, (n, c, d))
        bias = rng.normal(means[:, None], 1.0, (n, c))
        middle = np.zeros((n, d)) if self.iid else rng.normal(rng.normal(0.0, self.beta, n)[:, None], 1.0, (n, d))
        deviation = np.arange(1, d + 1) ** -0.6  # the variance of feature j is j^-1.2
        x = (rng.normal(size=(len(owner), d)) * deviation + middle[owner]).astype(np.float32)
        y = np.empty(len(owner), dtype=np.int64)
        for client, rows in enumerate(np.split(np.arange(len(owner)), np.cumsum(sizes)[:-1])):
            model = models[client]
            y[rows] = (x[rows] @ weight[model].T + bias[model]).argmax(1)
        train, test = _splits(owner, y, n, self.test, rng)
        domain = Domain(torch.from_numpy(x), torch.from_numpy(y))
        name = "synthetic iid" if self.iid else f"synthetic({self.alpha:g}, {self.beta:g})"
        return Federation((domain,), train, test, outputs=c, name=name)


@dataclass(frozen=True, config=STRICT)
class SyntheticRegression:
    """Linear regression y = <x, theta_s> + noise, one hidden theta_s per cluster, or clients that mix them."""

    paper: ClassVar[str] = "Ruan and Joe-Wong 2022, arXiv:2112.06053 (section 5, synthetic data)"

    clients: PositiveInt = 40
    clusters: PositiveInt = 4  # or distributions, where clients are mixtures
    pattern: Literal["clusters"] | Pattern = "clusters"  # or mixtures: 10:90, 30:70, linear (of 2), random (of any)
    dimension: PositiveInt = 10
    samples: tuple[PositiveInt, PositiveInt] = (100, 200)  # per client, uniform between the two
    variance: PositiveFloat = 10.0  # of the entries of theta_s
    noise: NonNegativeFloat = 1.0
    test: ShareBelowOne = 0.2

    def thetas(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """The hidden parameters (clusters, dimension): the first thing that is drawn."""
        return rng.normal(0, self.variance**0.5, (self.clusters, self.dimension))

    def __call__(self, rng: np.random.Generator) -> Federation:
        """Draw one: client i belongs to cluster i * clusters // clients, or has its mixture."""
        theta = self.thetas(rng)
        sizes = rng.integers(min(self.samples), max(self.samples) + 1, self.clients)
        if self.pattern == "clusters":
            truth: Ints | None = np.arange(self.clients) * self.clusters // self.clients
            mixture, counts = None, sizes[:, None] * np.eye(self.clusters, dtype=np.int64)[truth]
        else:
            truth, mixture = halves(self.pattern, self.clients), weights(self.pattern, self.clients, self.clusters, rng)
            counts = parts(sizes, mixture)
        owner = np.repeat(np.arange(self.clients), sizes)
        source = np.repeat(np.tile(np.arange(self.clusters), self.clients), counts.ravel())
        x = rng.normal(size=(len(owner), self.dimension))
        y = np.einsum("nd,nd->n", x, theta[source]) + rng.normal(0, self.noise, len(x))
        train, test = _splits(owner, source, self.clients, self.test, rng)
        return Federation(
            (Domain(torch.from_numpy(x).float(), torch.from_numpy(y).float()[:, None]),),
            *(train, test, "regression", 1, truth, mixture),
            name="synthetic-regression" + ("" if mixture is None else f", mixtures {self.pattern} of {self.clusters}"),
        )
