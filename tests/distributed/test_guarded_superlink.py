"""The guard before a real SuperLink: strangers do not reach the control interface, and nothing starts without it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr")
import httpx

from coterie.core.errors import CoterieError
from coterie.network import certificates
from coterie.network.audit import AuditLog
from coterie.network.flower import processes
from coterie.network.flower.internals import ListNodesRequest
from coterie.network.flower.superlink import ServerEndpoint, SuperLink, check_guard, running_superlink

pytestmark = pytest.mark.distributed
# A launcher that leaves the guard out, as if a release of Flower no longer called what we replace.
UNGUARDED = """
import sys
from coterie.network.flower import launcher
launcher.close_to_strangers = lambda *how: None
launcher.main()
"""
# One whose guard says that it is there, and lets everybody through.
TOO_OPEN = """
from coterie.network.flower import guard, launcher
guard.FOR_CLIENTS = ("/",)
launcher.main()
"""


def asked_from(source: str, port: int, path: str, host: str = "127.0.0.1") -> int:
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source), timeout=30, trust_env=False) as client:
        return int(client.post(f"http://{host}:{port}{path}").status_code)


def test_a_stranger_does_not_reach_the_control_interface(tmp_path: Path) -> None:
    port, audit = processes.free_port(), AuditLog(tmp_path / "audit.jsonl")
    with running_superlink(ServerEndpoint("127.0.0.1", port, None), tmp_path / "flower", audit=audit) as link:
        for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs"):
            assert asked_from("127.0.0.2", port, path) == 403, path
            assert asked_from("127.0.0.1", port, path) != 403, path
        assert asked_from("127.0.0.2", port, "/v1/fleet/pull-messages") != 403
        check_guard(link.at.address)
    refused = [json.loads(line) for line in audit.path.read_text().splitlines()]
    assert ("127.0.0.2", "/v1/control/start-run", 403) in [(r["address"], r["path"], r["status"]) for r in refused]
    assert stat.S_IMODE(audit.path.stat().st_mode) == 0o600


def test_a_key_is_revoked_and_replaced_while_the_superlink_runs(tmp_path: Path) -> None:
    """At the SuperLink itself: it does not know the key any more, and does not forget that when it is started again."""
    certs, audit = tmp_path / "certs", AuditLog(tmp_path / "audit.jsonl")
    certificates.provide(certs, [], ["anna", "bert", "cora"])
    at = ServerEndpoint("127.0.0.1", processes.free_port(), certs)

    def registered(link: SuperLink) -> list[str]:
        with link._control() as control:
            nodes = control.ListNodes(ListNodesRequest()).nodes_info
        return sorted(
            link.names[key] for key in (node.public_key.decode().strip() for node in nodes) if key in link.names
        )

    said: list[str] = []
    with running_superlink(at, tmp_path / "flower", audit=audit, say=said.append) as link:
        link.register()
        before = dict(link.names)
        assert registered(link) == ["anna", "bert", "cora"]
        certificates.revoke(certs, ["anna"])
        certificates.provide(certs, [], ["bert"], renew=True)
        assert sorted(link.register().values()) == ["bert", "cora"]
        assert registered(link) == ["bert", "cora"]
        assert said == [
            "client 'anna': its key was revoked, or it has expired; it is refused from now on",
            "client 'bert': its key was replaced; it is refused from now on",
        ]
        assert [key for key in before if key in link.names] == [k for k, name in before.items() if name == "cora"]
        assert len(all_nodes(link)) == 2, "the old keys are refused by Flower itself"
    (certs / "clients" / "cora" / "valid-until").write_text("2020-01-01T00:00:00+00:00")
    with running_superlink(at, tmp_path / "flower", audit=audit) as link:
        assert list(link.register().values()) == ["bert"]
        assert len(all_nodes(link)) == 1, "also a key of before this server was started"
    told = [json.loads(line) for line in audit.path.read_text().splitlines()]
    assert [t["client"] for t in told if t["event"] == "key-removed"] == ["anna", "bert"]


def all_nodes(link: SuperLink) -> list[str]:
    """The keys that the SuperLink still accepts."""
    with link._control() as control:
        nodes = control.ListNodes(ListNodesRequest()).nodes_info
    return [node.public_key.decode() for node in nodes if node.status != "unregistered"]


def test_the_guard_is_tried_at_any_address(tmp_path: Path) -> None:
    endpoint = ServerEndpoint("127.0.0.3", processes.free_port(), None)
    with running_superlink(endpoint, tmp_path / "flower"):
        assert asked_from("127.0.0.2", endpoint.port, "/v1/control/start-run", "127.0.0.3") == 403
        assert asked_from("127.0.0.3", endpoint.port, "/v1/control/start-run", "127.0.0.3") != 403


@pytest.mark.parametrize(("launcher", "why"), [(UNGUARDED, "HTTP 404"), (TOO_OPEN, "another address")])
def test_without_its_guard_a_server_does_not_start(
    launcher: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LAUNCHER", ("-c", launcher))
    endpoint = ServerEndpoint("127.0.0.1", processes.free_port(), None)
    with pytest.raises(CoterieError, match=why), running_superlink(endpoint, tmp_path / "flower"):
        raise AssertionError("it started")
