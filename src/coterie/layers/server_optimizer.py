"""A server optimizer around any method's means, be they plain, robust or private.

Moments belong to a model, not to a cluster's number: they are found again by the model that they led to. So clusters
may be renumbered, two that were split from one go on with its moments, and one that nobody answered for keeps both.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import torch
from pydantic import BeforeValidator
from torch import Tensor

from coterie.clustering.averaging import mean_by
from coterie.clustering.server_optimizers import Adam, Momentum, ServerOptimizer
from coterie.core.aggregation import Aggregator
from coterie.core.codec import pack
from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, dataclass
from coterie.core.tasks import Fitted
from coterie.engines.contract import Outcome, Visit
from coterie.layers.contract import Layer, Onward, Round, Setup, averaging, by_name

Moments: TypeAlias = Mapping[bytes, Tensor]  # by the model that they belong to


def fingerprint(model: Tensor) -> bytes:
    """Tells a model (P,) from all others."""
    numbers = model.detach().contiguous().view(torch.uint8).numpy()
    return hashlib.blake2b(numbers.data, digest_size=16).digest()


@dataclass(frozen=True, config=STRICT)
class ServerOptimizerSettings:
    """The option of a run."""

    # Momentum or adam around every mean: docs/server-optimizers.md.
    server_optimizer: Annotated[ServerOptimizer, BeforeValidator(by_name)] | None = None


class Optimized(Layer):
    """Clusters go where an optimizer takes them, with the mean as its gradient."""

    key = "server_optimizer"

    def __init__(self, rule: Momentum | Adam) -> None:
        self._rule = rule
        self.moments: Moments = {}  # of the last committed round

    @classmethod
    def of(cls, settings: Any) -> Optimized | None:
        """None where clusters go to their means."""
        return None if settings.server_optimizer is None else cls(settings.server_optimizer)

    def prepare(self, setup: Setup) -> Setup:
        """A method may say that no optimizer goes around it."""
        if why := getattr(setup.method, "no_server_optimizer", ""):
            raise CoterieError(f"server_optimizer: {type(setup.method).__name__} {why}", code="config-invalid-value")
        return setup

    def begin(self, round: Round) -> None:
        """See `Layer.begin`."""
        self._round, self._new = round, dict(self.moments)

    def visit(self, visit: Visit, onward: Onward) -> Outcome:
        """See `Layer.visit`."""
        outcome = onward(visit)
        return dataclasses.replace(outcome, replies=averaging(visit.tasks, outcome.replies, self._around))

    def _around(self, inner: Aggregator | None) -> OptimizedMean:
        return OptimizedMean(self._rule, self._new, self._round.model.parameters, inner)

    def commit(self, round: Round, before: Any, after: Any) -> Mapping[str, Any]:
        """Moments are kept of the models that the method goes on with."""
        models = (t for t in pack(after)[1] if t.ndim and t.shape[-1] == round.model.size and t.is_floating_point())
        self.moments = kept(self._new, models)
        return {}

    def pack(self) -> Mapping[str, Any]:
        """See `Layer.pack`."""
        keys = [torch.frombuffer(bytearray(key), dtype=torch.uint8) for key in self.moments]
        return {"keys": torch.stack(keys), "values": torch.stack(list(self.moments.values()))} if keys else {}

    def unpack(self, kept: Mapping[str, Any], lost: Sequence[Any]) -> None:
        """See `Layer.unpack`."""
        keys, values = kept.get("keys", ()), kept.get("values", ())
        self.moments = {bytes(key.tolist()): moments for key, moments in zip(keys, values, strict=True)}


class OptimizedMean:
    """An optimizer at work in one round (see `core.aggregation.Aggregator`), around a plain, robust or private mean."""

    def __init__(
        self, rule: Momentum | Adam, moments: dict[bytes, Tensor], trained: int, inner: Aggregator | None = None
    ) -> None:
        """moments: those there are, to which new ones are added. trained: how many numbers of a model are parameters,
        which come first. inner: what takes the mean, if any."""
        self._rule, self._trained, self._inner, self._moments = rule, trained, inner, moments
        self.also_of_nobody = bool(getattr(inner, "also_of_nobody", False))

    def __call__(self, labels: Tensor, reply: Fitted, weights: Tensor, empty: Tensor) -> Tensor:
        """Each cluster's model, moved by the optimizer where its clients answered."""
        means = mean_by(labels, dataclasses.replace(reply, aggregator=self._inner), weights, empty).to(empty.dtype)
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


def kept(moments: Moments, models: Iterable[Tensor]) -> Moments:
    """The moments of these models (..., P): those that a method goes on with."""
    rows = (row for t in models for row in t.reshape(-1, t.shape[-1]))
    found = {key: moments.get(key) for key in map(fingerprint, rows)}
    return {key: one for key, one in found.items() if one is not None}
