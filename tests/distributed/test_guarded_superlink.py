"""The guard before a real SuperLink: strangers do not reach the control interface, and nothing starts without it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")
import httpx

from coterie.core.errors import CoterieError
from coterie.network.flower import processes
from coterie.network.flower.superlink import ServerEndpoint, check_guard, running_superlink

pytestmark = pytest.mark.distributed
# A launcher that leaves the guard out, as if a release of Flower no longer called what we replace.
UNGUARDED = """
import sys
from coterie.network.flower import launcher
launcher.close_to_strangers = lambda host: None
launcher.main()
"""
# One whose guard says that it is there, and lets everybody through.
TOO_OPEN = """
from coterie.network.flower import guard, launcher
guard.FOR_CLIENTS = ("/",)
launcher.main()
"""


def asked_from(source: str, port: int, path: str) -> int:
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=30, trust_env=False) as client:
        return int(client.post(f"http://127.0.0.1:{port}{path}").status_code)


def test_a_stranger_does_not_reach_the_control_interface(tmp_path: Path) -> None:
    port = processes.free_port()
    with running_superlink(ServerEndpoint("127.0.0.1", port, None), tmp_path / "flower") as link:
        for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs"):
            assert asked_from("127.0.0.2", port, path) == 403, path
            assert asked_from("127.0.0.1", port, path) != 403, path
        assert asked_from("127.0.0.2", port, "/v1/fleet/pull-messages") != 403
        check_guard(link.at.address)


@pytest.mark.parametrize(("launcher", "why"), [(UNGUARDED, "HTTP 404"), (TOO_OPEN, "another address")])
def test_without_its_guard_a_server_does_not_start(
    launcher: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LAUNCHER", ("-c", launcher))
    endpoint = ServerEndpoint("127.0.0.1", processes.free_port(), None)
    with pytest.raises(CoterieError, match=why), running_superlink(endpoint, tmp_path / "flower"):
        raise AssertionError("it started")
