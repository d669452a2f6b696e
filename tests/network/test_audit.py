"""The audit log, the modes of files, keys that expire, and norms: what a server writes down and what it refuses."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from local_transport import groups, transport_of
from test_bans import WORDS, Liar

from conftest import raises
from coterie.client.contract import FitAnswer
from coterie.core.tasks import All, Fit, Local
from coterie.network import audit as module
from coterie.network import certificates
from coterie.network import engine as engine_module
from coterie.network.audit import AuditEntry, AuditLog, Throttled
from coterie.network.certificates import check_not_shared, check_private, private_files
from coterie.network.config import read
from coterie.network.messages import check_answers
from coterie.network.server import train_with_clients
from coterie.training.events import Event, RoundDone


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------------------------------------------ the log


def test_a_line_says_who_when_and_what_and_nobody_else_reads_it(tmp_path: Path, open_umask: None) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    assert not log.path.exists()
    log.note(AuditEntry("joined", client="anna", node=7))
    log.path.chmod(0o644)
    log.note(AuditEntry("request-refused", "x" * 900, address="10.0.0.9", path="/v1/control/start-run", status=403))
    first, second = lines(log.path)
    moment = datetime.fromisoformat(first.pop("time"))
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=5)
    assert first == {"event": "joined", "client": "anna", "node": 7, "times": 1, "reason": ""}
    assert (second["address"], second["status"], second["path"]) == ("10.0.0.9", 403, "/v1/control/start-run")
    assert len(second["reason"]) == module.LONGEST
    assert mode(log.path) == 0o600


def test_strangers_cannot_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADDRESSES", 3)
    noted: list[AuditEntry] = []
    now = [0.0]
    throttled = Throttled(noted.append, lambda: now[0])
    for _ in range(1000):
        throttled.note(AuditEntry("request-refused", "no", address="10.0.0.1"))
    assert [entry.times for entry in noted] == [1]
    for i in range(2, 500):
        throttled.note(AuditEntry("request-refused", "no", address=f"10.0.1.{i}"))
    assert len(noted) == 4  # three addresses, and one line for all the others
    now[0] = module.SILENCE
    throttled.flush(now[0])
    assert [(entry.address, entry.times) for entry in noted[4:]] == [("10.0.0.1", 999), ("", 495)]


def test_a_run_writes_down_who_joined_and_who_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))
    transport, log = transport_of(groups(7), tmp_path / "clients"), AuditLog(tmp_path / "audit.jsonl")
    transport.bend = Liar(103, size=1e30)
    transport.keys = {100 + i: f"key {i}" for i in range(7)}
    names = {f"key {i}": f"hospital-{i}" for i in range(7)}

    def revoke(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 2:
            names.pop("key 5", None)

    config = read(None, [*WORDS, "rounds=3", "network.refusals=1", "network.clients=4"])
    train_with_clients(transport, config, tmp_path / "run", keys=lambda: dict(names), listeners=[revoke], note=log.note)
    found = [(line["event"], line.get("client")) for line in lines(log.path)]
    assert [who for what, who in found if what == "joined"] == [f"hospital-{i}" for i in range(7)]
    assert found[7:9] == [("reply-refused", "hospital-3"), ("banned", "hospital-3")]
    (banned,) = [line for line in lines(log.path) if line["event"] == "banned"]
    assert "update rejected" in banned["reason"]
    assert ("refused", "hospital-5") in found
    (gone,) = [line for line in lines(log.path) if line.get("client") == "hospital-5" and line["event"] == "refused"]
    assert "revoked" in gone["reason"]
    assert gone["node"] == 105


# ------------------------------------------------------------------------------------------------ modes of files


def test_a_private_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    where = tmp_path / "certs"
    certificates.provide(where, [], ["a"])
    key = where / "clients" / "a" / "a"
    for exposed in (0o604, 0o620, 0o644):
        key.chmod(exposed)
        with raises("file-exposed", match="chmod 600"):
            certificates.client_files(key.parent)
    key.chmod(0o440)  # as Kubernetes hands a secret to a group
    assert certificates.client_files(key.parent).name == "a"
    (where / "server.key").chmod(0o644)
    with raises("file-exposed"):
        certificates.server_files(where)
    assert check_private(key) == key


def test_what_is_written_is_not_for_everybody(tmp_path: Path, open_umask: None) -> None:
    with private_files():
        (tmp_path / "inside").mkdir()
        (tmp_path / "inside" / "file").write_text("x")
    assert mode(tmp_path / "inside") == 0o750
    assert mode(tmp_path / "inside" / "file") == 0o640
    (tmp_path / "outside").mkdir()
    assert mode(tmp_path / "outside") == 0o777
    with raises("file-exposed", match="chmod o-w"):
        check_not_shared(tmp_path / "outside")
    check_not_shared(tmp_path / "inside")
    check_not_shared(tmp_path / "nowhere")


def test_a_run_directory_is_not_for_everybody_to_write(tmp_path: Path, open_umask: None) -> None:
    transport = transport_of(groups(4), tmp_path / "clients")
    train_with_clients(transport, read(None, [*WORDS, "rounds=1", "network.clients=4"]), tmp_path / "run")
    assert not mode(tmp_path / "run") & stat.S_IWOTH
    kept = [place for place in (tmp_path / "clients").rglob("*") if place.is_dir() and place.name.isalnum()]
    assert all(not mode(place) & 0o077 for place in kept if list(place.glob("*.safetensors")))


# ------------------------------------------------------------------------------------------------ keys that expire


def test_a_key_expires_and_a_new_one_takes_its_place(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    where, now = tmp_path / "certs", datetime.now(UTC)
    certificates.provide(where, [], ["a", "b"], now=now - timedelta(days=40))
    certificates.provide(where, [], ["a"], renew=True, days=10, now=now - timedelta(days=20))
    old = (where / "clients" / "a" / "a.pub").read_text()
    assert [name for name, _ in certificates.server_files(where).clients] == ["b"]
    with raises("certificate-expired", match="ask the server's operator"):
        certificates.client_files(where / "clients" / "a")
    standing = certificates.provide(where)
    assert any("clients/a has expired" in line and "--renew --client a" in line for line in standing.warnings)
    certificates.provide(where, [], ["a"], renew=True)
    assert [name for name, _ in certificates.server_files(where).clients] == ["a", "b"]
    assert (where / "clients" / "a" / "a.pub").read_text() != old


def test_a_key_of_before_does_not_expire_and_a_damaged_end_is_not_ignored(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    where = tmp_path / "certs"
    certificates.provide(where, [], ["a"])
    until = where / "clients" / "a" / "valid-until"
    until.write_text("tomorrow")
    with raises("certificate-invalid", match="until when"):
        certificates.server_files(where)
    until.unlink()
    assert [name for name, _ in certificates.server_files(where).clients] == ["a"]


# --------------------------------------------------------------------------------------------------------- norms


def test_a_model_beyond_the_norm_is_refused() -> None:
    task = Fit(All(torch.zeros(4)), local=Local())
    answer = FitAnswer(theta=torch.tensor([3.0, 4.0, 0.0, 0.0]), loss=0.1, n=3, choice=None, sketch=None)
    check_answers((answer,), (task,), 4, norm=5.0)
    check_answers((answer,), (task,), 4)
    with raises("wire-answer-invalid", match="network.norm"):
        check_answers((answer,), (task,), 4, norm=4.99)


def test_the_norm_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four clients are too few for a median to tell who is wrong; an absolute limit does."""
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))
    transport = transport_of(groups(4), tmp_path / "clients")
    transport.bend = Liar(103, size=1e6)
    config = read(None, [*WORDS, "rounds=1", "network.clients=4", "network.norm=1000"])
    result = train_with_clients(transport, config, tmp_path / "run")
    assert [(m.client, "network.norm" in m.reason) for m in result.history[0].missing] == [(3, True)]
    assert float(result.state.abs().max()) < 100


# --------------------------------------------------------------------------------------------- secure aggregation


@pytest.mark.parametrize("words", [["network.secure_aggregation=true"], ["secure_aggregation=false"]])
def test_secure_aggregation_is_refused_with_the_reason(words: list[str]) -> None:
    with raises("config-unavailable", match="sees what each client sends"):
        read(None, [*WORDS, *words])
