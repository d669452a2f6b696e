"""`coterie dashboard` as its users meet it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import boards
import pytest

from conftest import raises
from coterie.tools.cli.dashboard import dashboard

pytest.importorskip("dash", reason="the extra `dashboard` is not installed")

from coterie.tools.dashboard import server


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with raises("run-not-found"):
        dashboard(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with raises("run-not-found"):
        dashboard(tmp_path / "file")


def test_without_dash_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dash", None)
    with raises("extra-missing", match=r"pip install 'coterie\[dashboard\]'"):
        dashboard(tmp_path)


def test_a_port_in_use_is_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with boards.start(tmp_path, "--port", str(port)) as process:
            out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err == f"error: --port {port}: in use by another program; choose another, or 0 for any that is free\n"


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with raises("address-unavailable", match=r"--host 203\.0\.113\.7: no address of this machine"):
        dashboard(tmp_path, host="203.0.113.7", port=0)
    with raises("address-unavailable", match="--host not a host: there is no such address"):
        dashboard(tmp_path, host="not a host", port=0)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_a_wider_host_is_warned_about(
    host: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(directory: Path, sock: socket.socket, host: str) -> None:
        sock.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "serve", serve)
    dashboard(tmp_path, host=host, port=0)
    said = capsys.readouterr().err
    assert ("there is no password" in said) is warned
    assert "http://" in said
    assert "http://0.0.0.0" not in said  # no browser goes there
