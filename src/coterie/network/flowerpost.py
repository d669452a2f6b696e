"""Flower's grid as the post. Every call that the SuperLink does not answer ends in a `LinkDownError`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from coterie.errors import CoterieError
from coterie.network.post import Letter, Lost
from coterie.network.records import TYPE, from_records, to_records
from coterie.network.wire import Parcel, WireError


class LinkDownError(CoterieError):
    """The SuperLink does not answer, or has forgotten the run."""


WHY = {  # Flower's reasons, shorter
    ErrorCode.MESSAGE_UNAVAILABLE: "no answer in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer was lost on the way",
    ErrorCode.NODE_UNAVAILABLE: "has not been heard of for a while",
}


class FlowerPost:
    """Carries parcels over a Flower network."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def present(self) -> Mapping[int, str]:
        """See `Post.present`."""
        with _reaching():
            nodes = list(self._grid.get_nodes())
        return {node.node_id: node.public_key.decode(errors="replace") for node in nodes if node.status == "online"}

    def send(self, letters: Sequence[Letter], keep_for: float) -> list[str | None]:
        """See `Post.send`."""
        messages = [
            Message(to_records(letter.parcel), dst_node_id=letter.node, message_type=TYPE, ttl=keep_for)
            for letter in letters
        ]
        with _reaching():
            tickets = list(self._grid.push_messages(messages))
        # Flower gives an empty list where all of it was too large, and None or "" where a node is gone.
        return [ticket or None for ticket in tickets] if tickets else [None] * len(letters)

    def collect(self, tickets: Sequence[str]) -> list[tuple[str, Parcel | Lost]]:
        """See `Post.collect`."""
        with _reaching():
            messages = list(self._grid.pull_messages(tickets))
        return [(message.metadata.reply_to_message_id, _parcel(message)) for message in messages]


def _parcel(message: Message) -> Parcel | Lost:
    if message.has_error():
        known = WHY.get(message.error.code)
        return Lost(known or f"Flower says: {' '.join((message.error.reason or '').split())[:200]}")
    try:
        return from_records(message.content)
    except WireError as error:
        return Lost(str(error))


@contextmanager
def _reaching() -> Iterator[None]:
    from flwr.supercore.run import RunNotRunningException

    try:
        yield
    except (httpx.HTTPError, RunNotRunningException) as error:
        raise LinkDownError(f"the SuperLink does not answer ({type(error).__name__}: {error})") from None
