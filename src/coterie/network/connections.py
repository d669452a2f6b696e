"""How many connections an address may have, and which of them give way when there are too many.

A connection that asks for nothing gives way to a new one, and so does one whose requests no registered client has
signed: however many somebody opens, leaves idle or feeds a byte at a time, a client still gets in. They are counted
where they are accepted, before any TLS, because a handshake that never ends counts too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from coterie.network.audit import AuditEntry, no_audit

Peer = tuple[str, int]  # address and port
IN_ALL = 4096  # connections of all addresses, as far as the system allows so many open files
STRANGERS = 512  # of these, where clients have keys: without one that is registered. Each takes up to 0.3 MB
HEADERS = 20.0  # seconds in which a connection must have asked for something


@dataclass
class _Open:
    """A connection."""

    line: socket.socket
    protocol: Any = None  # of uvicorn, once TLS is agreed upon
    known: bool = False  # a registered client has signed a request of it, or it comes from this machine

    @property
    def idle(self) -> bool:
        """Whether it waits for nothing."""
        return self.protocol is None or bool(self.protocol.wants_nothing())

    @property
    def mute(self) -> bool:
        """Whether it has never asked for anything."""
        return self.protocol is None or self.protocol.cycle is None


class Connections:
    """All open connections, by address, the oldest first."""

    def __init__(
        self,
        per_address: int,
        in_all: int = IN_ALL,
        exempt: tuple[str, ...] = (),
        note: Callable[[AuditEntry], None] = no_audit,
        strangers: int | None = None,
    ) -> None:
        """exempt: addresses of this machine, limited by `in_all` only. strangers: how many connections may be those of
        nobody in particular; None where clients have no keys, so that everybody is a stranger."""
        self._per_address, self._in_all, self._exempt, self._note = per_address, in_all, exempt, note
        self._strangers = strangers
        self._open: dict[str, dict[Peer, _Open]] = {}

    def __len__(self) -> int:
        return sum(len(some) for some in self._open.values())

    def admit(self, line: socket.socket, peer: Peer) -> bool:
        """Whether a new connection may stay. An idle one gives way to it, first of those that never asked."""
        whose = place(peer[0])
        mine = self._open.get(whose, {})
        if whose not in self._exempt and len(mine) >= self._per_address:
            if not self._give_way(mine, peer[0], f"more than {self._per_address} connections from one address"):
                return False
        elif len(self) >= self._in_all:
            if not self._give_way(self._all(), peer[0], f"more than {self._in_all} connections"):
                return False
        elif self._strangers is not None and whose not in self._exempt:
            unknown = {at: one for at, one in self._all().items() if not one.known}
            if len(unknown) >= self._strangers:
                self._give_way(unknown, peer[0], f"more than {self._strangers} connections without a registered key")
        self._open.setdefault(whose, {})[peer] = _Open(line, known=whose in self._exempt)
        return True

    def _all(self) -> dict[Peer, _Open]:
        return dict(item for some in self._open.values() for item in some.items())

    def _found(self, peer: Peer) -> _Open | None:
        return self._open.get(place(peer[0]), {}).get(peer)

    def is_known(self, peer: Peer) -> bool:
        """Whether a registered client has signed a request of this connection."""
        found = self._found(peer)
        return found is not None and found.known

    def knows(self, peer: Peer) -> None:
        """A registered client has signed a request of this connection."""
        found = self._found(peer)
        if found is not None:
            found.known = True

    def speaks(self, peer: Peer, protocol: Any) -> None:
        """A connection has agreed upon TLS, where there is any."""
        found = self._found(peer)
        if found is not None:
            found.protocol = protocol

    def check(self, peer: Peer) -> None:
        """Close a connection that has not agreed upon TLS by now."""
        found = self._found(peer)
        if found is not None and found.protocol is None:
            _hang_up(found.line)

    def closed(self, peer: Peer) -> None:
        """A connection has ended."""
        whose = place(peer[0])
        some = self._open.get(whose, {})
        some.pop(peer, None)
        if not some:
            self._open.pop(whose, None)

    def _give_way(self, some: dict[Peer, _Open], address: str, why: str) -> bool:
        self._note(AuditEntry("connection-refused", why, address=address))
        for peer in self._least_missed(some):
            _hang_up(some[peer].line)
            self.closed(peer)
            return True
        return False

    def _least_missed(self, some: dict[Peer, _Open]) -> Iterator[Peer]:
        yield from (peer for peer, one in some.items() if one.mute and one.idle)
        yield from (peer for peer, one in some.items() if one.idle and not one.known)
        if self._strangers is not None:
            yield from (peer for peer, one in some.items() if not one.known)
        yield from (peer for peer, one in some.items() if one.idle)


def place(address: str) -> str:
    """What is counted as one address: with IPv6 a network of 64 bits, which is what one customer has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped is not None or found.is_loopback:
        return str(found)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


def _hang_up(line: socket.socket) -> None:
    """The event loop, which owns the connection, finds it at its end and closes it."""
    with contextlib.suppress(OSError):  # it has gone by itself
        line.shutdown(socket.SHUT_RDWR)


class _Counted(socket.socket):
    """A connection that says when it is closed."""

    on_close: Callable[[], None] | None = None

    def close(self) -> None:
        super().close()
        if self.on_close is not None:
            self.on_close()
            self.on_close = None


class Listener(socket.socket):
    """A bound socket that accepts connections as far as `Connections` admits them."""

    def __init__(self, bound: socket.socket, connections: Connections) -> None:
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self._connections = connections
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; an aborted one where it may not stay, which an event loop passes over."""
        accepted, address = self._accepted()
        peer: Peer = (str(address[0]), int(address[1]))
        line = _Counted(fileno=accepted.detach())
        if not self._connections.admit(line, peer):
            line.close()
            raise ConnectionAbortedError
        line.on_close = lambda: self._connections.closed(peer)
        asyncio.get_running_loop().call_later(HEADERS, self._connections.check, peer)
        return line, address

    def _accepted(self) -> tuple[socket.socket, Any]:
        """With no file left the connection is dropped: it would be offered again and again, with a line in the log."""
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        os.close(self._spare)
        try:
            dropped, _ = super().accept()
            dropped.close()
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)
        raise ConnectionAbortedError

    def close(self) -> None:
        """Close it, and what it holds in reserve."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError:
        found.close()
        raise
    return found


def most_open(wanted: int = IN_ALL) -> int:
    """How many connections this process can have, after asking for as many open files as it may: half of them, for
    files are needed elsewhere too."""
    try:
        import resource
    except ImportError:  # Windows
        return min(wanted, 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2 * wanted if hard == resource.RLIM_INFINITY else min(2 * wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return int(files) // 2


def prompt(protocol: Any, connections: Connections | None = None) -> Any:
    """A protocol of uvicorn's that gives a connection so many seconds to say all of what it wants. (uvicorn itself
    closes one that is silent after an answer, but waits for ever for the first request, or the rest of one.)"""

    class Prompt(protocol):  # type: ignore[misc]
        hurry: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if connections is not None and self.client is not None:
                connections.speaks(self.client, self)
            self.give_time()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.hurry is None and self.wants_nothing():
                self.give_time()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.hurry is not None:
                self.hurry.cancel()
            super().connection_lost(exc)

        def give_time(self) -> None:
            self.hurry = self.loop.call_later(HEADERS, self.time_is_over)

        def time_is_over(self) -> None:
            self.hurry = None
            if self.wants_nothing():
                self.transport.close()

        def wants_nothing(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

    return Prompt
