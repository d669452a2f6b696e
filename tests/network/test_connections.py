"""Limits before a real web server, over real sockets of 127.0.0.0/8: connections, rates, who counts as this machine."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
import uvicorn
import uvicorn.config

from coterie.network import certificates
from coterie.network import connections as module
from coterie.network.audit import AuditEntry
from coterie.network.connections import Connections, Listener, bound, most_open, place
from coterie.network.flower import guard as guard_module
from coterie.network.flower.guard import AT_ONCE, STRANGER, Rates, SuperLinkGuard
from coterie.network.flower.launcher import close_silent_connections, limit_connections

ONE, OTHER = "127.0.0.2", "127.0.0.3"  # two other machines, as far as the server can tell


@dataclass
class Server:
    """A guarded server that is running, and what it has noted."""

    port: int
    noted: list[AuditEntry] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)  # /v1/fleet/slow answers after this
    asked: int = 0
    begun: int = 0  # requests whose headers have come

    def ask(
        self, path: str, source: str, headers: dict[str, str] | None = None, ca: Path | None = None, wait: float = 20
    ) -> int:
        """The status of the answer; each request has a connection of its own."""
        where = ("127.0.0.1", self.port)
        if ca is None:
            line = http.client.HTTPConnection(*where, timeout=wait, source_address=(source, 0))
        else:
            context = ssl.create_default_context(cafile=str(ca))
            line = http.client.HTTPSConnection(*where, timeout=wait, source_address=(source, 0), context=context)
        try:
            line.request("POST", path, headers=headers or {})
            return line.getresponse().status
        finally:
            line.close()

    def connect(self, source: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20, source_address=(source, 0))


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Starts a server with a guard, as the launcher does for a SuperLink."""
    for owner, name in ((uvicorn.Server, "run"), (uvicorn.config.Config, "load")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards

    @contextmanager
    def start(
        per_address: int = 16,
        in_all: int = 4096,
        requests: float = 100,
        strangers: int | None = None,
        **how: Any,
    ) -> Iterator[Server]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            running = Server(free.getsockname()[1])

        async def app(scope: Any, receive: Any, send: Any) -> None:
            running.asked += 1
            if scope["path"].endswith("slow"):
                await asyncio.to_thread(running.held.wait, 20)
            status = 401 if scope["path"].endswith("unknown") else 200
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        limits = Connections(per_address, in_all, ("127.0.0.1", "::1"), running.noted.append, strangers)
        close_silent_connections(limits)
        limit_connections(limits)
        guarded = SuperLinkGuard(app, ("127.0.0.1", "::1"), requests, running.noted.append, b"x-key", limits)

        async def superlink(scope: Any, receive: Any, send: Any) -> None:
            running.begun += 1
            state = SimpleNamespace(enable_supernode_auth=strangers is not None)
            await guarded(scope | {"app": SimpleNamespace(state=state)}, receive, send)

        config = uvicorn.Config(
            superlink, "127.0.0.1", running.port, lifespan="off", ws="none", log_level="error", **how
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield running
        finally:
            running.held.set()
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()

    return start


@pytest.mark.parametrize("tls", [False, True])
def test_200_idle_connections_do_not_keep_a_client_out(tls: bool, serving: Any, tmp_path: Path) -> None:
    """Neither from the same address nor from another one; with TLS they never begin the handshake."""
    how, ca = {}, None
    if tls:
        pytest.importorskip("cryptography")
        certificates.provide(tmp_path / "certs")
        ca = tmp_path / "certs" / "ca.crt"
        how = {"ssl_certfile": tmp_path / "certs" / "server.pem", "ssl_keyfile": tmp_path / "certs" / "server.key"}
    with serving(16, **how) as server, ExitStack() as idle:
        for _ in range(200):
            idle.enter_context(server.connect(ONE))
        for source in (ONE, OTHER, "127.0.0.1"):
            assert server.ask("/v1/fleet/pull", source, ca=ca) == 200
        assert {(e.event, e.address, e.reason) for e in server.noted} == {
            ("connection-refused", ONE, "more than 16 connections from one address")
        }
        for _ in range(200):  # and all of the machine's connections taken
            idle.enter_context(server.connect("127.0.0.1"))
        assert server.ask("/v1/fleet/pull", OTHER, ca=ca) == 200


def test_all_addresses_together_are_limited_too(serving: Any) -> None:
    with serving(16, 40) as server, ExitStack() as idle:
        lines = [idle.enter_context(server.connect(f"127.0.1.{i}")) for i in range(1, 101)]
        assert server.ask("/v1/fleet/pull", ONE) == 200
        assert lines[0].recv(1) == b"", "the oldest gave way"
        assert any(e.reason == "more than 40 connections" for e in server.noted)


def test_a_connection_that_waits_for_an_answer_does_not_give_way(serving: Any) -> None:
    with serving(2) as server, ExitStack() as stack:
        busy = [stack.enter_context(server.connect(ONE)) for _ in range(2)]
        for line in busy:
            line.sendall(b"POST /v1/fleet/slow HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        while server.asked < 2:
            time.sleep(0.01)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            server.ask("/v1/fleet/pull", ONE)
        assert server.asked == 2
        assert server.ask("/v1/fleet/pull", OTHER) == 200
        server.held.set()
        assert all(line.recv(12) == b"HTTP/1.1 200" for line in busy)


TRICKLE = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nx"
SIGNED = {"x-key": "anna"}


@pytest.fixture
def signed_by_anna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "has_key", lambda scope: (b"x-key", b"anna") in scope["headers"])


@pytest.mark.usefixtures("signed_by_anna")
def test_bodies_that_trickle_keep_nobody_out(serving: Any) -> None:
    """Neither from a client's own address, nor from many others that take all that strangers may have together."""
    with serving(16, strangers=64) as server, ExitStack() as stack:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20, source_address=(ONE, 0))
        stack.callback(client.close)

        def asks() -> int:
            client.request("POST", "/v1/fleet/pull", headers=SIGNED)
            answer = client.getresponse()
            answer.read()
            return answer.status

        assert asks() == 200
        for source in (ONE, *(f"127.0.1.{i}" for i in range(1, 9))):
            for _ in range(16):
                begun = server.begun
                stack.enter_context(server.connect(source)).sendall(TRICKLE)
                while server.begun == begun:
                    time.sleep(0.001)
        assert server.ask("/v1/fleet/pull", ONE, SIGNED) == 200
        assert server.ask("/v1/fleet/pull", OTHER, SIGNED) == 200
        line = client.sock
        assert asks() == 200
        assert client.sock is line, "what a registered client has open stays open"
        assert {entry.reason for entry in server.noted} == {
            "more than 16 connections from one address",
            "more than 64 connections without a registered key",
        }


@pytest.mark.usefixtures("signed_by_anna")
def test_a_body_that_trickles_has_little_time(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "BRIEF", 0.3)
    part = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n%bcontent-length: 20\r\n\r\n"
    with serving(strangers=64) as server, server.connect(ONE) as stranger, server.connect(OTHER) as client:
        stranger.sendall(part % b"")
        client.sendall(part % b"x-key: anna\r\n")
        stranger.sendall(b"x")
        assert stranger.recv(12) == b"HTTP/1.1 408"
        client.sendall(bytes(20))
        assert client.recv(12) == b"HTTP/1.1 200", "a part of a client's model may take longer"


def test_an_idle_connection_is_closed(serving: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setattr(module, "HEADERS", 0.2)
    certificates.provide(tmp_path / "certs")
    how = {"ssl_certfile": tmp_path / "certs" / "server.pem", "ssl_keyfile": tmp_path / "certs" / "server.key"}
    for options in ({}, how):  # plaintext, and a handshake that never begins
        with serving(16, **options) as server, server.connect(ONE) as line:
            assert line.recv(1) == b""


def test_who_asks_too_often_waits_and_nobody_else(serving: Any) -> None:
    with serving(requests=2) as server:
        found = [server.ask("/v1/fleet/pull", ONE, {"x-key": "anna"}) for _ in range(30)]
        assert found[: int(2 * AT_ONCE)] == [200] * int(2 * AT_ONCE)
        assert 503 in found
        assert server.ask("/v1/fleet/pull", OTHER, {"x-key": "anna"}) == 200
        assert all(server.ask("/v1/runtime/x", "127.0.0.1") == 200 for _ in range(30)), "this machine is not limited"
        assert {(e.address, e.reason, e.status) for e in server.noted} == {(ONE, "too many requests", 503)}


def test_who_was_refused_often_must_show_a_key_and_its_neighbour_gets_in(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard_module, "has_key", lambda scope: (b"x-key", b"anna") in scope["headers"])
    with serving() as server:
        found = [server.ask("/v1/fleet/unknown", ONE, {"x-key": f"invented {i}"}) for i in range(60)]
        assert found[0] == 401
        assert found[-1] == 503
        assert server.asked < 60, "the SuperLink is not asked any more"
        assert server.ask("/health", ONE) == 503
        assert server.ask("/v1/fleet/pull", ONE, {"x-key": "anna"}) == 200
        assert server.ask("/v1/fleet/pull", OTHER) == 200


def test_a_header_does_not_make_a_stranger_local(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with serving() as server:
        assert server.ask("/v1/control/start-run", ONE, {"x-forwarded-for": "127.0.0.1"}) == 403
        assert server.ask("/v1/control/start-run", "127.0.0.1") == 200
        assert server.ask("/v1/control/start-run", "127.0.0.1", {STRANGER.decode(): "1"}) == 403
        (noted,) = server.noted
        assert (noted.address, noted.path, noted.status) == (ONE, "/v1/control/start-run", 403)


def test_rates_by_hand() -> None:
    now = [0.0]
    rates = Rates(2, lambda: now[0])
    assert [rates.take("a") for _ in range(11)] == [True] * 10 + [False]  # five seconds' worth
    assert rates.spent("a")
    now[0] = 0.5  # one more
    assert not rates.spent("a")
    assert [rates.take("a"), rates.take("a"), rates.take("b")] == [True, False, True]
    now[0] = 100
    assert [rates.take("a") for _ in range(11)] == [True] * 10 + [False]


def test_what_counts_as_one_address() -> None:
    assert place("10.0.0.9") == "10.0.0.9"
    assert place("2001:db8:1:2:3::9") == place("2001:db8:1:2:ffff::1") == "2001:db8:1:2::/64"
    assert place("2001:db8:1:3::1") != place("2001:db8:1:2::1")
    assert place("fe80::1%eth0") == "fe80::/64"
    assert place("::1") == "::1"
    assert place("") == ""
    assert 100 < most_open() <= module.IN_ALL


def test_with_no_file_left_connections_are_dropped_and_not_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with Listener(bound("127.0.0.1", 0), Connections(16)) as listener:
        listener.listen(16)
        full = iter([True, False])
        real = socket.socket.accept

        def accept(line: socket.socket) -> Any:
            if next(full, False):
                raise OSError(errno.EMFILE, "Too many open files")
            return real(line)

        monkeypatch.setattr(socket.socket, "accept", accept)
        with socket.create_connection(listener.getsockname(), 20) as line:
            with pytest.raises(ConnectionAbortedError):
                listener.accept()
            assert line.recv(1) == b"", "closed, so that it is not accepted again at once"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
