"""How many connections an address may have, and which of them give way when there are too many.

A connection that asks for nothing gives way to a new one: however many somebody opens and leaves idle, a client still
gets in. They are counted where they are accepted, before any TLS, because a handshake that never ends counts too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from coterie.network.security.audit import AuditEntry, no_audit

Peer = tuple[str, int]  # address and port
IN_ALL = 4096  # connections of all addresses, as far as the system allows so many open files
HEADERS = 20.0  # seconds in which a connection must have asked for something


@dataclass
class _Open:
    """A connection."""

    line: socket.socket
    protocol: Any = None  # of uvicorn, once TLS is agreed upon

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
    ) -> None:
        """exempt: addresses of this machine, limited by `in_all` only."""
        self._per_address, self._in_all, self._exempt, self._note = per_address, in_all, exempt, note
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
            everyone = dict(item for some in self._open.values() for item in some.items())
            if not self._give_way(everyone, peer[0], f"more than {self._in_all} connections"):
                return False
        self._open.setdefault(whose, {})[peer] = _Open(line)
        return True

    def speaks(self, peer: Peer, protocol: Any) -> None:
        """A connection has agreed upon TLS, where there is any."""
        found = self._open.get(place(peer[0]), {}).get(peer)
        if found is not None:
            found.protocol = protocol

    def check(self, peer: Peer) -> None:
        """Close a connection that has not agreed upon TLS by now."""
        found = self._open.get(place(peer[0]), {}).get(peer)
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

    @staticmethod
    def _least_missed(some: dict[Peer, _Open]) -> Iterator[Peer]:
        yield from (peer for peer, one in some.items() if one.mute and one.idle)
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
    """Accepts connections as far as `Connections` admits them."""

    def __init__(self, host: str, port: int, connections: Connections) -> None:
        super().__init__(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._connections = connections
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind((host, port))
        except OSError:
            self.close()
            raise

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; an aborted one where it may not stay, which an event loop passes over."""
        accepted, address = super().accept()
        peer: Peer = (str(address[0]), int(address[1]))
        line = _Counted(fileno=accepted.detach())
        if not self._connections.admit(line, peer):
            line.close()
            raise ConnectionAbortedError
        line.on_close = lambda: self._connections.closed(peer)
        asyncio.get_running_loop().call_later(HEADERS, self._connections.check, peer)
        return line, address


def most_open() -> int:
    """How many connections this process can have, after asking for as many open files as it may."""
    try:
        import resource
    except ImportError:  # Windows
        return 1000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * IN_ALL if hard == resource.RLIM_INFINITY else min(2 * IN_ALL, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return int(wanted) // 2


def limit_connections(connections: Connections) -> None:
    """Have the web server of this process count its connections.

    Its event loop must be asyncio's own: uvloop accepts connections by itself. And who asks is whoever is connected,
    never who a header names: with FORWARDED_ALLOW_IPS in the environment, a stranger could pose as this machine.
    """
    from uvicorn import Server

    run = Server.run

    def limited(server: Any, sockets: Any = None) -> None:
        config = server.config
        config.loop, config.proxy_headers = "asyncio", False
        with Listener(config.host, config.port, connections) as listener:
            run(server, sockets or [listener])

    Server.run = limited
