"""Who carries parcels between the server and its clients' nodes. The engine knows no more than this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.network.wire import Parcel


@dataclass(frozen=True)
class Letter:
    """A parcel and the node it goes to."""

    node: int
    parcel: Parcel


@dataclass(frozen=True)
class Lost:
    """What came instead of an answer."""

    why: str


class Post(Protocol):
    """Carries parcels; knows which nodes are connected."""

    def present(self) -> Mapping[int, str]:
        """The connected nodes, and the public key of each."""

    def send(self, letters: Sequence[Letter], keep_for: float) -> list[str | None]:
        """Send off, for delivery within so many seconds; a ticket for each, None where it could not be sent."""

    def collect(self, tickets: Sequence[str]) -> list[tuple[str, Parcel | Lost]]:
        """What has arrived for these tickets by now; each is given once."""
