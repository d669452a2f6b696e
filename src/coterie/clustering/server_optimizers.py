"""Server optimizers around any method's mean: the step from a cluster's model to its clients' mean is a gradient.

Hsu et al. 2019, arXiv:1909.06335 (FedAvgM) and Reddi et al., ICLR 2021, arXiv:2003.00295 (FedAdam). With D = mean of
the clients' models - x: momentum v <- beta v + D, x <- x + eta v; Adam m <- beta1 m + (1 - beta1) D, v <- beta2 v +
(1 - beta2) D^2, x <- x + eta m / (sqrt(v) + tau), without correction of the bias, from m = 0 and v = tau^2.
Statistics (BatchNorm) are no parameters: they are averaged.

Moments belong to a model, not to a cluster's number: they are found again by the model that they led to. So clusters
may be renumbered, two that were split from one go on with its moments, and one that nobody answered for keeps both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.core.aggregation import Aggregator
from coterie.core.settings import STRICT, ShareBelowOne, dataclass
from coterie.core.tasks import Fitted


@dataclass(frozen=True, config=STRICT)
class Momentum:
    """Momentum at the server (FedAvgM)."""

    name: Literal["momentum"] = "momentum"
    beta: ShareBelowOne = 0.9  # of the momentum that is kept; 0 with eta 1 is the plain mean
    eta: PositiveFloat = 1.0  # the server's learning rate

    def begin(self, x: Tensor) -> Tensor:
        """The moments (1, P) of a model that has none yet."""
        return x.new_zeros(1, len(x))

    def step(self, x: Tensor, mean: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
        """The next model, and the moments after it."""
        moved = mean - x
        v = self.beta * moments[0] + moved
        return mean + (self.eta * v - moved), v[None]  # so written, beta 0 and eta 1 give the mean to the bit


@dataclass(frozen=True, config=STRICT)
class Adam:
    """Adam at the server (FedAdam)."""

    name: Literal["adam"] = "adam"
    eta: PositiveFloat = 0.1  # the server's learning rate: about how far a parameter moves in a round
    beta1: ShareBelowOne = 0.9  # of the first moment that is kept
    beta2: ShareBelowOne = 0.99  # of the second
    tau: PositiveFloat = 1e-3  # how adaptive it is: a step D well below tau moves a parameter by about eta D / tau

    def begin(self, x: Tensor) -> Tensor:
        """The moments (2, P) of a model that has none yet."""
        return torch.stack([torch.zeros_like(x), torch.full_like(x, self.tau**2)])

    def step(self, x: Tensor, mean: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
        """The next model, and the moments after it."""
        moved = mean - x
        m = self.beta1 * moments[0] + (1 - self.beta1) * moved
        v = self.beta2 * moments[1] + (1 - self.beta2) * moved.square()
        return x + self.eta * m / (v.sqrt() + self.tau), torch.stack([m, v])


ServerOptimizer: TypeAlias = Annotated[Momentum | Adam, Field(discriminator="name")]
Moments: TypeAlias = Mapping[bytes, Tensor]  # by the model that they belong to


def fingerprint(model: Tensor) -> bytes:
    """Tells a model (P,) from all others."""
    numbers = model.detach().contiguous().view(torch.uint8).numpy()
    return hashlib.blake2b(numbers.data, digest_size=16).digest()


class OptimizedMean:
    """An optimizer at work in one round (see `core.aggregation.Aggregator`), around a plain, robust or private mean."""

    def __init__(self, rule: Momentum | Adam, moments: Moments, trained: int, inner: Aggregator | None = None) -> None:
        """trained: how many numbers of a model are parameters, which come first. inner: what takes the mean, if any."""
        self._rule, self._trained, self._inner = rule, trained, inner
        self._moments = dict(moments)
        self.also_of_nobody = bool(getattr(inner, "also_of_nobody", False))

    def __call__(self, labels: Tensor, reply: Fitted, weights: Tensor, empty: Tensor) -> Tensor:
        """Each cluster's model, moved by the optimizer where its clients answered."""
        means = mean_by(labels, replace(reply, aggregator=self._inner), weights, empty).to(empty.dtype)
        # Nobody answered for a cluster that is as it was. (With noise, labels must not tell: the private mean does.)
        moved, out = (means != empty).any(1), means.clone()
        for row in torch.nonzero(moved)[:, 0].tolist():
            self._move(empty[row], out[row])
        return out

    def _move(self, model: Tensor, mean: Tensor) -> None:
        """Put the next model in the place of the mean, and note its moments."""
        old = model[: self._trained]
        moments = self._moments.get(fingerprint(model))
        new, moments = self._rule.step(
            old, mean[: self._trained], self._rule.begin(old) if moments is None else moments
        )
        mean[: self._trained] = new
        self._moments[fingerprint(mean)] = moments

    def kept(self, models: Iterable[Tensor]) -> Moments:
        """The moments of these models (..., P): those that a method goes on with."""
        rows = (row for t in models for row in t.reshape(-1, t.shape[-1]))
        found = {key: self._moments.get(key) for key in map(fingerprint, rows)}
        return {key: moments for key, moments in found.items() if moments is not None}


def packed(moments: Moments) -> dict[str, Any]:
    """Moments as tensors, for a checkpoint."""
    keys = [torch.frombuffer(bytearray(key), dtype=torch.uint8) for key in moments]
    return {"keys": torch.stack(keys), "values": torch.stack(list(moments.values()))} if keys else {}


def unpacked(kept: Mapping[str, Any] | None) -> Moments:
    """And back."""
    if not kept:
        return {}
    return {bytes(key.tolist()): values for key, values in zip(kept["keys"], kept["values"], strict=True)}
