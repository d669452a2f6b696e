"""A client and a server that speak differently: said at once, and given up after `--patience` seconds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="comes with coterie[flower]")

from conftest import raises
from coterie.network.certificates import ClientFiles
from coterie.network.flower import supernode as discovery
from coterie.network.flower.supernode import ServerConnection, find

ALERT = b"\x15\x03\x01\x00\x02\x02\x46"  # what TLS says to something that is not TLS


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "FIND_AGAIN", 0.001)
    monkeypatch.setattr(discovery, "LOOK", 0.5)


@contextmanager
def listening(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """A server that answers what it hears, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return  # closed
                with line:
                    try:
                        line.sendall(answer(line.recv(1000)))
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def client_files(tmp_path: Path) -> ClientFiles:
    from coterie.network.certificates import client_files as read
    from coterie.network.certificates import provide

    provide(tmp_path / "certs", ["localhost"], ["anna"])
    return read(tmp_path / "certs" / "clients" / "anna")


@pytest.mark.parametrize("answer", [ALERT, b""], ids=["alert", "hangs up"])
def test_without_tls_against_a_server_with_it(answer: bytes) -> None:
    said: list[str] = []
    with listening(lambda _: answer) as server, raises("network-refused"):
        find(ServerConnection(server, None), 0.05, said.append)
    assert len(said) == 1, "once, not at every try"
    assert "give --key DIR instead of --insecure; trying again for 0.05 s" in said[0]


def test_without_tls_against_one_without() -> None:
    said: list[str] = []
    with listening(lambda heard: b"HTTP/1.1 200 OK\r\n\r\n" if heard.startswith(b"GET /health") else b"") as server:
        find(ServerConnection(server, None), 0, said.append)
    assert said == [f"connecting to {server}"]


def test_with_tls_against_a_server_without_it(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    said: list[str] = []
    files = client_files(tmp_path)
    with (
        listening(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as server,
        raises("network-refused"),
    ):
        find(ServerConnection(server, files), 0.02, said.append)
    assert len(said) == 1


def test_a_server_that_comes_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes: patience is for a server that is there."""
    tries = iter([ConnectionRefusedError(111, "Connection refused")] * 5)

    def mismatch(to: ServerConnection) -> None:
        for error in tries:
            raise error

    monkeypatch.setattr(discovery, "_mismatch", mismatch)
    said: list[str] = []
    find(ServerConnection("127.0.0.1:9", None), 0, said.append)
    assert said == ["nobody answers at 127.0.0.1:9 yet (Connection refused); trying on", "connecting to 127.0.0.1:9"]


@pytest.mark.parametrize("gone", ["ca.crt", "anna", "all"])
def test_a_key_directory_that_is_gone_is_not_an_absent_server(gone: str, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    files, said = client_files(tmp_path), list[str]()
    for file in files.ca.parent.iterdir():
        if gone in ("all", file.name):
            file.unlink()
    with (
        listening(lambda _: b"") as server,
        raises("certificate-missing", match=str(files.ca.parent / ("" if gone == "all" else gone))),
    ):
        find(ServerConnection(server, files), 0.02, said.append)
    assert said == []


def test_a_damaged_certificate_is_named(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    files = client_files(tmp_path)
    files.ca.write_text("nothing")
    with listening(lambda _: b"") as server, raises("certificate-invalid", match=f"{files.ca}: cannot be read"):
        find(ServerConnection(server, files), 0.02, print)


def test_a_handshake_that_is_cut_is_an_absent_server(tmp_path: Path) -> None:
    """A proxy accepts connections while the server behind it is started again: that is waited for, however long."""
    pytest.importorskip("cryptography")
    to_files = client_files(tmp_path)
    with listening(lambda _: b"") as server, pytest.raises(OSError, match="ends connections before TLS"):
        discovery._mismatch(ServerConnection(server, to_files))
