"""What the engine needs of a network: connected nodes, messages to them, and their replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.network.protocol.wire import LIMITS, Limits, Payload


@dataclass(frozen=True)
class Outgoing:
    """A message to a node, and the limits of its reply."""

    node: int
    payload: Payload
    answer: Limits = LIMITS


@dataclass(frozen=True)
class NoReply:
    """Why there is no reply. malformed: something arrived, but it cannot be a reply."""

    why: str
    malformed: bool = False


class Transport(Protocol):
    """Sends messages to nodes and collects their replies."""

    def connected(self) -> Mapping[int, str]:
        """The connected nodes, and the public key of each."""

    def send(self, messages: Sequence[Outgoing], keep_for: float) -> list[str | None]:
        """Send messages that are delivered within so many seconds. Returns their ids, None for one not sent."""

    def collect(self, message_ids: Sequence[str], within: float) -> list[tuple[str, Payload | NoReply]]:
        """The replies to these messages that have arrived in full, each once.

        Takes about `within` seconds at most, even if a client stops in the middle of its reply.
        """
