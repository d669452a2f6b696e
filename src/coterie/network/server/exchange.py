"""Messages to nodes and their replies, counted."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.engines.contract import Traffic
from coterie.network.protocol.messages import ClientInfo, FrozenWanted, Refusal, VisitReply, read_as_server
from coterie.network.protocol.wire import Limits, Payload, WireError
from coterie.network.server.bans import UnableError
from coterie.network.transport import NoReply, Outgoing, Transport


class Exchange:
    """Sends messages and reads replies; counts the bytes of both."""

    def __init__(self, transport: Transport) -> None:
        self.transport, self.traffic = transport, Traffic()

    def send(self, messages: Sequence[Outgoing], keep_for: float) -> list[str | None]:
        """See `Transport.send`."""
        self.traffic.messages += len(messages)
        self.traffic.down += sum(message.payload.size for message in messages)
        return self.transport.send(messages, keep_for) if messages else []

    def opened(self, what: Payload | NoReply, limits: Limits) -> ClientInfo | VisitReply | FrozenWanted:
        """A reply, decoded and checked; a `WireError` says why there is none."""
        if isinstance(what, NoReply):
            raise WireError(what.why) if what.malformed else UnableError(what.why)
        self.traffic.up += what.size
        self.traffic.messages += 1
        found = read_as_server(what, limits)
        if isinstance(found, Refusal):
            raise UnableError(f"failed: {found.reason}")
        return found
