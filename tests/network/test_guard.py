"""What stands before a SuperLink: who reaches what, how much is read, and how long a silent connection lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.network.audit import AuditEntry
from coterie.network.connections import prompt
from coterie.network.flower import guard as module
from coterie.network.flower.guard import LARGE, PARTS, SMALL, STRANGER, SuperLinkGuard


@pytest.mark.parametrize(
    ("path", "peer", "passes"),
    [
        ("/v1/fleet/pull-messages", "10.0.0.9", True),
        ("/health", "10.0.0.9", True),
        ("/v1/control/register-node", "10.0.0.9", False),
        ("/v1/control/register-node", "127.0.0.1", True),
        ("/v1/control/register-node", "10.0.0.5", True),
        ("/v1/runtime/acquire-task", "10.0.0.9", False),
        ("/v1/fleet/../control/start-run", "10.0.0.9", True),  # not resolved by anyone: there is no such route
        ("/openapi.json", "10.0.0.9", False),
        ("/v1/fleetx", "", False),
    ],
)
def test_other_machines_reach_what_clients_need_only(path: str, peer: str, passes: bool) -> None:
    pytest.importorskip("starlette")
    reached, sent = [], []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    async def nothing() -> Any:
        return {"type": "http.request"}

    guard = SuperLinkGuard(inner, ("127.0.0.1", "::1", "10.0.0.5"))
    scope: dict[str, Any] = {
        "type": "http",
        "path": path,
        "client": (peer, 5) if peer else None,
        "headers": [],
        "method": "POST",
    }
    asyncio.run(guard(scope, nothing, send))
    assert bool(reached) == passes
    assert passes or sent[0]["status"] == 403


STOP = b"..."  # from here on nothing comes


class Played:
    """A request that comes in pieces, and what becomes of it."""

    def __init__(
        self, path: str, pieces: Sequence[bytes | None], peer: str = "10.0.0.9", said: int | None = None
    ) -> None:
        """None among the pieces: the other side is gone. said: the length that the headers announce."""
        headers = [] if said is None else [(b"content-length", str(said).encode())]
        state = SimpleNamespace(enable_supernode_auth=True)
        self.scope: Any = {"type": "http", "path": path, "client": (peer, 5), "headers": headers, "method": "POST"}
        self.scope["app"] = SimpleNamespace(state=state)
        self.pieces, self.taken, self.status, self.body = list(pieces), 0, 0, b""
        self.headers: dict[bytes, bytes] = {}

    async def receive(self) -> Any:
        piece = self.pieces.pop(0)
        if piece is STOP:
            await asyncio.Event().wait()
        self.taken += len(piece or b"")
        more = bool(self.pieces)
        return (
            {"type": "http.disconnect"} if piece is None else {"type": "http.request", "body": piece, "more_body": more}
        )

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.headers |= dict(message.get("headers", ()))

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message["more_body"]
        self.body = message["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def play(self) -> Played:
        asyncio.run(SuperLinkGuard(self.app, ("127.0.0.1",))(self.scope, self.receive, self.send))
        return self


@pytest.mark.parametrize("known", [True, False])
def test_who_has_no_key_is_not_read(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand pieces of which only the first few are taken."""
    pytest.importorskip("starlette")
    monkeypatch.setattr(module, "has_key", lambda scope: known)
    piece = bytes(1 << 15)
    for said in (None, 1000 << 15):
        played = Played(PARTS[0], [piece] * 1000, said=said).play()
        assert played.status == 413
        assert played.headers[b"connection"] == b"close"
        allowed = LARGE if known else SMALL
        assert played.taken <= (allowed + len(piece) if said is None else 0)
        assert not played.body
    played = Played(PARTS[0], [piece] * 4).play()  # a part of a model
    assert played.status == (200 if known else 413)
    assert len(played.body) == (4 << 15 if known else 0)


@pytest.mark.parametrize(
    ("path", "peer", "most"),
    [
        *((f"/v1/fleet/{name}", "10.0.0.9", SMALL) for name in ("activate-node", "pull-messages", "x")),
        *(("/health", "10.0.0.9", SMALL), ("/v1/runtime/push-object", "127.0.0.1", LARGE)),
    ],
)
def test_every_request_has_a_size(path: str, peer: str, most: int) -> None:
    pytest.importorskip("starlette")
    assert Played(path, [bytes(most)], peer).play().status == 200
    assert Played(path, [bytes(most), b"x"], peer).play().status == 413


def test_who_stops_in_the_middle_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette")
    monkeypatch.setattr(module, "PIECE", 0.01)
    assert Played("/health", [b"x", STOP]).play().status == 408
    gone = Played("/health", [b"x", None]).play()
    assert (gone.status, gone.body) == (0, b"")


def test_without_a_signature_there_is_no_key() -> None:
    pytest.importorskip("flwr")
    assert not module.has_key({"headers": []})
    assert not module.has_key({"headers": [(b"x-flwr-public-key", b"nonsense")]})


class Quiet:
    """A protocol of uvicorn's, as far as it matters here."""

    def __init__(self) -> None:
        self.loop, self.transport = self, self
        self.cycle: Any = None
        self.timers: list[Any] = []
        self.closed = False

    def connection_made(self, transport: Any) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"!"):
            self.cycle = SimpleNamespace(response_complete=False)

    def call_later(self, seconds: float, what: Any) -> Any:
        timer: Any = SimpleNamespace(over=what)
        timer.cancel = lambda: self.timers.remove(timer)
        self.timers.append(timer)
        return timer

    def ring(self) -> None:
        self.timers.pop().over()

    def close(self) -> None:
        self.closed = True


def test_a_connection_must_ask_for_something() -> None:
    silent = prompt(Quiet)()
    silent.connection_made(silent)
    silent.ring()
    assert silent.closed
    slow = prompt(Quiet)()
    slow.connection_made(slow)
    slow.data_received(b"half a requ")
    slow.ring()
    assert slow.closed
    busy = prompt(Quiet)()
    busy.connection_made(busy)
    busy.data_received(b"a request!")
    busy.ring()
    assert not busy.closed, "it is being answered"
    busy.cycle.response_complete = True
    busy.data_received(b"half a requ")
    busy.ring()
    assert busy.closed
    gone = prompt(Quiet)()
    gone.connection_made(gone)
    gone.connection_lost(None)
    assert not gone.timers


@pytest.mark.parametrize(
    ("peer", "marked", "noted"),
    [
        ("127.0.0.2", True, ["the server's own test of its guard: not for clients"]),
        ("127.0.0.2", False, ["not for clients"]),
        ("127.0.0.1", True, []),
        ("10.0.0.9", True, ["not for clients"]),  # another machine cannot hide behind the mark
    ],
)
def test_the_servers_own_test_is_marked_in_the_audit_log(peer: str, marked: bool, noted: list[str]) -> None:
    pytest.importorskip("starlette")
    found: list[AuditEntry] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it was let through")

    async def send(message: Any) -> None:
        """Not looked at."""

    async def nothing() -> Any:
        return {"type": "http.request"}

    scope: dict[str, Any] = {
        "type": "http",
        "path": "/v1/control/start-run",
        "client": (peer, 5),
        "method": "POST",
        "headers": [(STRANGER, b"1")] if marked else [],
    }
    asyncio.run(SuperLinkGuard(inner, ("127.0.0.1", "::1"), note=found.append)(scope, nothing, send))
    assert [entry.reason for entry in found] == noted
    assert all(entry.address == peer for entry in found)
