"""What stands before a SuperLink: who may ask for what, and how much anybody may have it remember.

A SuperLink serves clients (fleet), its executors (runtime) and its operator (control) on one port.
The last asks for no login: whoever reaches the port could register keys, start runs and stop them. Here only the
machine itself may. It also reads a request whole before it asks for a key, answers as often as it is asked, and leaves
a silent connection open for ever. Here a request is as large as the largest part of a message, from somebody without a
key far smaller, nobody asks more often than a client needs to, and whoever connects must ask for something.
"""

from __future__ import annotations

import asyncio
import binascii
import datetime
import ipaddress
import time
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from coterie.network.audit import AuditEntry, no_audit
from coterie.network.connections import Connections, place
from coterie.network.flower import internals

AT_ONCE = 5.0  # seconds' worth
NAMES = 10_000  # that are remembered; the one that was quiet the longest is forgotten first


class Rates:
    """For each name an allowance that fills up by `per_second`."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = per_second, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # the allowance, and when it was worked out

    def take(self, name: str) -> bool:
        """Use one of a name's allowance; False if there is none left."""
        left = self._now(name)
        self._left[name] = (max(left - 1, 0.0), self._clock())
        self._left.move_to_end(name)
        if len(self._left) > NAMES:
            self._left.popitem(last=False)
        return left >= 1

    def spent(self, name: str) -> bool:
        """Whether a name has nothing left."""
        return self._now(name) < 1

    def _now(self, name: str) -> float:
        most = max(self._rate * AT_ONCE, 1.0)
        if name not in self._left:
            return most
        left, when = self._left[name]
        return min(most, left + (self._clock() - when) * self._rate)


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HERE = "/coterie-guard"  # asks whether there is one
FOR_CLIENTS = ("/v1/fleet/",)
PARTS = ("/v1/fleet/push-object", "/v1/fleet/push-messages")  # the requests of clients that carry more than names
SMALL = 1 << 16  # bytes of a request
LARGE = 18 << 20  # and of one that carries a part of a message: an outline of 16 MiB at most, a chunk of 5
PIECE = 30.0  # seconds between two pieces of a part of a message
WHOLE = 600.0  # seconds for all of it; 30 kB/s will do
BRIEF = 10.0  # seconds for all of any other request, and of one that no registered client has signed
REQUESTS = 100.0  # a second that a client may send
FAILURES = 5.0  # a second that an address may cause before it is asked for a key first
# A header: treat this request as if it came from another machine. It is heeded from this machine only, or whoever sent
# it would not be written down as who he is.
STRANGER = b"x-coterie-stranger"
OWN_TEST = "the server's own test of its guard"  # before a reason in the audit log
REFUSED = range(400, 500)  # statuses


class TooMuchError(Exception):
    """A request is larger than it may be."""


class SuperLinkGuard:
    """Answers strangers on other machines for nothing but what clients need, and nobody for more than is needed."""

    def __init__(
        self,
        app: Any,
        local: tuple[str, ...],
        requests: float = REQUESTS,
        note: Callable[[AuditEntry], None] = no_audit,
        key_header: bytes = b"",
        connections: Connections | None = None,
    ) -> None:
        """requests: a second, from one client. note: where refusals are written down. key_header: where a client says
        which key is its own. connections: those of clients with a registered key do not give way."""
        self.app, self.local, self.note, self.key_header, self.connections = app, local, note, key_header, connections
        self.clients, self.failures = Rates(requests), Rates(FAILURES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        path, peer = str(scope["path"]), (scope.get("client") or ("", 0))[0]
        if peer in self.local and _is_marked(scope):
            peer = ""
        if path == HERE:
            await _answer(scope, receive, send, "yes", 200)
            return
        refusal = await self._refusal(scope, path, peer)
        if refusal is not None:
            await self._refuse(scope, receive, send, peer, *refusal)
            return
        if scope["type"] == "websocket":  # of which a SuperLink has none
            await self.app(scope, receive, send)
            return
        most = await self._most(scope, path, peer)
        try:
            body = await _read(scope, receive, most, WHOLE if most == LARGE else BRIEF)
        except TooMuchError:
            await self._refuse(scope, receive, send, peer, f"more than {most} bytes", 413)
            return
        except TimeoutError:
            await self._refuse(scope, receive, send, peer, "too slow", 408)
            return
        if body is not None:  # None: gone before it had sent everything
            by_client = path.startswith(FOR_CLIENTS) or peer not in self.local
            await self.app(scope, _again(body, receive), self._watched(path, peer, send) if by_client else send)

    async def _refusal(self, scope: Scope, path: str, peer: str) -> tuple[str, int] | None:
        """Why a request is not answered, if so, and the status that says it."""
        if peer in self.local:
            return None
        for_clients = path.startswith(FOR_CLIENTS)
        if not for_clients and path != "/health":
            return "not for clients", 403
        # Whoever failed often must show a key first: a neighbour behind the same address is still let in.
        if self.failures.spent(place(peer)) and not (for_clients and await asyncio.to_thread(has_key, scope)):
            return "too many refused requests", 503
        # Not checked here: who claims a key that Flower does not know fails, and has to show it next time.
        who = dict(scope["headers"]).get(self.key_header, b"").decode("latin-1") if for_clients else ""
        # Flower's client tries again after 503, and ends after 429.
        return None if self.clients.take(f"{place(peer)} {who}") else ("too many requests", 503)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, peer: str, why: str, status: int) -> None:
        told = f"{OWN_TEST}: {why}" if _is_marked(scope) and _is_loopback(peer) else why
        self._failed(str(scope["path"]), peer, told, status)
        await _answer(scope, receive, send, why, status)

    def _watched(self, path: str, peer: str, send: Send) -> Send:
        """Count what Flower itself refuses, such as an unknown key."""

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] in REFUSED:
                self._failed(path, peer, "refused by Flower: an unknown key, or no such request", message["status"])
            await send(message)

        return sending

    def _failed(self, path: str, peer: str, why: str, status: int) -> None:
        if peer not in self.local:
            self.failures.take(place(peer))
        # An unknown address is not written down as if it were one: it is the check whether there is a guard.
        if peer:
            self.note(AuditEntry("request-refused", why, address=peer, path=path[:100], status=status))

    async def _most(self, scope: Scope, path: str, peer: str) -> int:
        """Bytes that a request may have."""
        if not path.startswith(FOR_CLIENTS):
            return LARGE if peer in self.local else SMALL
        known = await self._signed(scope, again=path in PARTS)
        return LARGE if known and path in PARTS else SMALL

    async def _signed(self, scope: Scope, again: bool) -> bool:
        """Whether a registered client has signed this request or, unless `again`, an earlier one of its connection."""
        superlink = getattr(scope.get("app"), "state", None)
        if not getattr(superlink, "enable_supernode_auth", False):
            return True
        connection = scope.get("client")
        if not again and self.connections is not None and connection is not None:
            if self.connections.is_known(tuple(connection)):
                return True
        elif not again:
            return False
        known = await asyncio.to_thread(has_key, scope)
        if known and self.connections is not None and connection is not None:
            self.connections.knows(tuple(connection))
        return known


def _is_marked(scope: Scope) -> bool:
    return any(name.lower() == STRANGER for name, _ in scope["headers"])


def _is_loopback(peer: str) -> bool:
    """Whether it is an address of this machine itself, which no other machine can use."""
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


def has_key(scope: Scope) -> bool:
    """Whether the headers are signed by a registered client; Flower itself looks only after it has read the body."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    try:
        key = b64decode(headers[internals.FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()], validate=True)
        signature = b64decode(headers[internals.FLEET_HTTP_SIGNATURE_HEADER.lower().encode()], validate=True)
        signed_at = headers[internals.TIMESTAMP_HEADER.lower().encode()]
        age = (internals.now() - datetime.datetime.fromisoformat(signed_at.decode("ascii"))).total_seconds()
        if not -internals.SYSTEM_TIME_TOLERANCE < age < internals.TIMESTAMP_TOLERANCE + internals.SYSTEM_TIME_TOLERANCE:
            return False
        if scope["app"].state.linkstate_factory.state().get_node_id_by_public_key(key) is None:
            return False
        return bool(internals.verify_signature(internals.bytes_to_public_key(key), signed_at, signature))
    except (KeyError, ValueError, TypeError, binascii.Error):
        return False


async def _read(scope: Scope, receive: Receive, most: int, within: float) -> bytes | None:
    """The body of a request, no more of it than is allowed and in time; None where the other side is gone."""
    said = dict(scope["headers"]).get(b"content-length", b"0")
    if said.isdigit() and int(said) > most:
        raise TooMuchError
    body = bytearray()
    async with asyncio.timeout(within):
        while True:
            message = await asyncio.wait_for(receive(), PIECE)
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > most:
                raise TooMuchError
            if not message.get("more_body", False):
                return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body as if it had just come; after it, whatever comes."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def play() -> MutableMapping[str, Any]:
        return first.pop() if first else await receive()

    return play


async def _answer(scope: Scope, receive: Receive, send: Send, why: str, status: int) -> None:
    from starlette.responses import PlainTextResponse

    await PlainTextResponse(why, status, {"connection": "close"})(scope, receive, send)


def this_machine(host: str) -> tuple[str, ...]:
    """From where it reaches itself: the loopback, or the one address that it listens on."""
    return tuple(sorted({"127.0.0.1", "::1", host} - {"0.0.0.0", "::"}))


def close_to_strangers(
    host: str,
    requests: float = REQUESTS,
    note: Callable[[AuditEntry], None] = no_audit,
    connections: Connections | None = None,
) -> None:
    """Put a `SuperLinkGuard` before the SuperLink that this process is about to become."""
    from starlette.middleware import Middleware

    key_header = internals.FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
    how: dict[str, Any] = {"local": this_machine(host), "requests": requests, "note": note, "key_header": key_header}
    how["connections"] = connections
    internals.extend_superlink(lambda: (Middleware(SuperLinkGuard, **how),))
