"""What stands before a SuperLink: who may ask for what, and how much anybody may have it remember.

A SuperLink serves clients (fleet), its executors (runtime) and its operator (control) on one port.
The last asks for no login: whoever reaches the port could register keys, start runs and stop them. Here only the
machine itself may. It also reads a request whole before it asks for a key, and leaves a silent connection open for
ever. Here a request is as large as the largest part of a message, from somebody without a key far smaller, and whoever
connects must ask for something.
"""

from __future__ import annotations

import asyncio
import binascii
import datetime
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from coterie.network.flower import internals

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HERE = "/coterie-guard"  # asks whether there is one
FOR_CLIENTS = ("/v1/fleet/",)
PARTS = ("/v1/fleet/push-object", "/v1/fleet/push-messages")  # the requests of clients that carry more than names
SMALL = 1 << 16  # bytes of a request
LARGE = 18 << 20  # and of one that carries a part of a message: an outline of 16 MiB at most, a chunk of 5
PIECE = 30.0  # seconds between two pieces of a request
WHOLE = 600.0  # seconds for all of it; 30 kB/s will do
HEADERS = 20.0  # seconds in which a connection must have asked for something


class TooMuchError(Exception):
    """A request is larger than it may be."""


class Guard:
    """Answers strangers on other machines for nothing but what clients need, and nobody for more than is needed."""

    def __init__(self, app: Any, local: tuple[str, ...]) -> None:
        self.app, self.local = app, local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        path, peer = str(scope["path"]), (scope.get("client") or ("", 0))[0]
        if path == HERE:
            await _answer(scope, receive, send, "yes", 200)
            return
        if not path.startswith(FOR_CLIENTS) and path != "/health" and peer not in self.local:
            await _answer(scope, receive, send, "not for clients", 403)
            return
        if scope["type"] == "websocket":  # of which a SuperLink has none
            await self.app(scope, receive, send)
            return
        most = await self._most(scope, path, peer)
        try:
            body = await _read(scope, receive, most)
        except TooMuchError:
            await _answer(scope, receive, send, f"more than {most} bytes", 413)
            return
        except TimeoutError:
            await _answer(scope, receive, send, "too slow", 408)
            return
        if body is not None:  # None: gone before it had sent everything
            await self.app(scope, _again(body, receive), send)

    async def _most(self, scope: Scope, path: str, peer: str) -> int:
        """Bytes that a request may have."""
        if not path.startswith(FOR_CLIENTS):
            return LARGE if peer in self.local else SMALL
        if path not in PARTS:
            return SMALL
        keys = getattr(scope["app"].state, "enable_supernode_auth", False)
        return LARGE if not keys or await asyncio.to_thread(has_key, scope) else SMALL


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


async def _read(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """The body of a request, no more of it than is allowed; None where the other side is gone."""
    said = dict(scope["headers"]).get(b"content-length", b"0")
    if said.isdigit() and int(said) > most:
        raise TooMuchError
    body = bytearray()
    async with asyncio.timeout(WHOLE):
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


def close_to_strangers(host: str) -> None:
    """Put a `Guard` before the SuperLink that this process is about to become."""
    from starlette.middleware import Middleware

    # This machine reaches itself from the loopback, or from the one address that it listens on.
    local = tuple({"127.0.0.1", "::1", host} - {"0.0.0.0", "::"})
    internals.replace("flwr.superlink.extensions", "get_middleware", lambda: (Middleware(Guard, local=local),))


def close_silent_connections() -> None:
    """Have the web server of this process close a connection that asks for nothing."""
    from uvicorn.config import Config

    load = Config.load

    def loaded(config: Any) -> None:
        load(config)
        config.http_protocol_class = prompt(config.http_protocol_class)

    Config.load = loaded


def prompt(protocol: Any) -> Any:
    """A protocol of uvicorn's that gives a connection so many seconds to say all of what it wants. (uvicorn itself
    closes one that is silent after an answer, but waits for ever for the first request, or the rest of one.)"""

    class Prompt(protocol):  # type: ignore[misc]
        hurry: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
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
