"""Networks that are kept ready: built at the first request for a client or a cluster, never again for the next one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor, nn

from coterie.core.model import Ensemble, Model, Replica, channels_last, combined

FEW = 64  # samples, of which even images are one batch


@dataclass(frozen=True, eq=False)
class Predictor:
    """One network, or several that predict together; its outputs are those of `Result.predict` to the last bit."""

    replicas: tuple[Replica, ...]
    mixture: Tensor | None = None
    average: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs (n, outputs) for scaled inputs; in inference mode."""
        said = [_outputs(replica, x) for replica in self.replicas]
        if len(said) == 1 and self.mixture is None:
            return said[0]
        return combined(torch.stack(said), self.mixture, self.average, self.replicas[0].loss)


def _outputs(replica: Replica, x: Tensor) -> Tensor:
    """As `replica.logits`, which prepares its network anew each time; a few samples are one batch."""
    if len(x) > FEW or replica.mixes or replica.network.training:
        return replica.logits(x)
    out: Tensor = replica.network(channels_last(x))
    return out


@dataclass(eq=False)
class _Shared:
    """A predictor, and the number of places that use it."""

    predictor: Predictor
    bytes: int
    places: int = 0


class ReadyNetworks:
    """The predictors of the places (clients, clusters) that were asked for last. Equal networks are kept once."""

    def __init__(self, model: Model, most_bytes: int, most_places: int) -> None:
        self._model, self._most_bytes, self._most_places = model, most_bytes, most_places
        self._digests: OrderedDict[Hashable, bytes] = OrderedDict()  # by place, the oldest first
        self._shared: dict[bytes, _Shared] = {}
        self._lock = threading.Lock()
        self.bytes = 0

    def get(self, place: Hashable, make: Callable[[], nn.Module]) -> Predictor:
        """The predictor of a place; `make` gives its network where it is not ready."""
        with self._lock:
            digest = self._digests.get(place)
            if digest is None:
                digest = self._add(place, make())
            self._digests.move_to_end(place)
            found = self._shared[digest].predictor
            self._trim()
            return found

    def drop(self, place: Hashable) -> None:
        """Forget a place."""
        with self._lock:
            if place in self._digests:
                self._release(self._digests.pop(place))

    def _add(self, place: Hashable, network: nn.Module) -> bytes:
        parts = list(network.networks) if isinstance(network, Ensemble) else [network]
        mixture = network.mixture if isinstance(network, Ensemble) else None
        average = isinstance(network, Ensemble) and network.average
        thetas = [self._model.vector(part) for part in parts]
        digest = _digest([*thetas, *([] if mixture is None else [mixture])], average, mixture is None)
        if digest not in self._shared:
            replicas = tuple(self._model.replica().load(theta) for theta in thetas)
            for replica in replicas:
                replica.network.eval()
            size = sum(t.element_size() * t.numel() for r in replicas for t in (r.theta, r.grad))
            self._shared[digest] = _Shared(Predictor(replicas, mixture, average), size)
            self.bytes += size
        self._shared[digest].places += 1
        self._digests[place] = digest
        return digest

    def _trim(self) -> None:
        """Forget those that were not asked for the longest; the last one stays, however large it is."""
        while len(self._digests) > 1 and (self.bytes > self._most_bytes or len(self._digests) > self._most_places):
            self._release(self._digests.popitem(last=False)[1])

    def _release(self, digest: bytes) -> None:
        shared = self._shared[digest]
        shared.places -= 1
        if not shared.places:
            self.bytes -= shared.bytes
            del self._shared[digest]


def _digest(tensors: list[Tensor], average: bool, plain: bool) -> bytes:
    found = blake2b(bytes([average, plain]), digest_size=16)
    for t in tensors:
        found.update(t.detach().contiguous().numpy().tobytes())
    return found.digest()
