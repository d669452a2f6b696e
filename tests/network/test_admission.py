"""Who is let in, and what is said to those who are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from local_transport import Arrays, LocalTransport, groups, transport_of, worker

from conftest import raises
from coterie.data.federation import Federation
from coterie.network import engine as engine_module
from coterie.network.audit import AuditEntry
from coterie.network.client_state import DirectoryStore
from coterie.network.config import read
from coterie.network.engine import NetworkEngine
from coterie.network.messages import PROTOCOL, ClientInfo, Refusal, read_as_client
from coterie.network.registry import ClientRegistry, describe_kinds
from coterie.network.server import train_with_clients
from coterie.network.worker import ClientWorker
from coterie.training.events import Event, RoundDone

ABOUT = ClientInfo(PROTOCOL, "ha", 30, 10, (3,), "classification", 2, "1.0", "age, region=north, region=south")
WORDS = ("model=linear", "method.name=fedavg", "rounds=3")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))


def twice_as_wide(number: int, arrays: Arrays, folder: Path) -> ClientWorker:
    x, y, x_test, y_test = arrays
    return worker(number, (np.concatenate([x, x], 1), y, np.concatenate([x_test, x_test], 1), y_test), folder)


# ---------------------------------------------------------------------------------- what the first clients have


def test_kinds_of_data_are_told_apart_by_client_and_column() -> None:
    others = [replace(ABOUT, name="he", input_shape=(1,), features="age"), replace(ABOUT, name="hb")]
    assert describe_kinds([ABOUT, others[1]]) == ""
    assert describe_kinds([]) == ""
    assert describe_kinds([ABOUT, *others]) == (
        "ha, hb: inputs (3,), classification; "
        "he: its inputs: (1,); those: (3,); without region=north, region=south"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"features": "age, region=north, region=west"}, "features; without region=south and with region=west besides"),
        (
            {"features": "region=north, age, region=south"},
            "features; in another order: region=north, age, region=south; those: age, region=north, region=south",
        ),
        ({"features": ""}, "features: no names; those: age, region=north, region=south"),
        ({"kind": "regression"}, "task: regression; those: classification"),
        ({"classes": "no, yes"}, "classes: no, yes; those: no names"),
        ({"input_shape": (1, 8, 8), "features": ""}, "inputs: (1, 8, 8); those: (3,)"),
    ],
)
def test_how_one_kind_differs_from_another(change: dict[str, object], said: str) -> None:
    other = replace(ABOUT, name="hz", **change)  # type: ignore[arg-type]
    assert describe_kinds([ABOUT, replace(ABOUT, name="hb"), other]).endswith(f"; hz: its {said}")


def test_many_names_are_not_all_told() -> None:
    names = [f"c{i:02d}" for i in range(30)]
    found = describe_kinds([*(replace(ABOUT, name=name) for name in names), replace(ABOUT, name="z", classes="a, b")])
    assert found.startswith("c00, c01, c02, c03, c04, c05, c06, c07 and 22 others: inputs (3,)")


def test_waiting_for_clients_of_one_kind_is_said_and_ends_with_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 3))
    monkeypatch.setattr("coterie.network.engine.time.monotonic", lambda: float(next(clock)))
    transport, said = transport_of(groups(2), tmp_path), list[str]()
    transport.workers[102] = twice_as_wide(2, groups(3)[2], tmp_path)
    settings = read(None, [*WORDS, "network.clients=3", "network.patience=9"]).network
    differ = r"their data is not of one kind: c00, c01: inputs \(6,\), classification; c02: its inputs: \(12,\)"
    with raises("clients-absent", match=f"after 9 s 3 of 3 clients are there, but {differ}"):
        NetworkEngine(transport, ClientRegistry(), settings, say=said.append).wait()
    (told,) = said  # once, not at every look
    assert told.startswith("waiting for clients: 3 of 3 connected, but their data is not of one kind: c00, c01:")


# ------------------------------------------------------------------------------------------ refused, and told


def late(transport: LocalTransport, node: int, who: ClientWorker) -> object:
    def come(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 1:
            transport.workers[node] = who

    return come


def refusals(transport: LocalTransport, node: int) -> list[str]:
    found = [read_as_client(message.payload) for message in transport.sent if message.node == node]
    return [message.reason for message in found if isinstance(message, Refusal)]


def test_a_late_client_that_does_not_fit_is_told_once_and_written_down_by_name(tmp_path: Path) -> None:
    transport, noted, said = transport_of(groups(3), tmp_path / "clients"), list[AuditEntry](), list[str]()
    late_one = twice_as_wide(9, groups(1)[0], tmp_path / "clients")
    come = late(transport, 300, late_one)
    made = read(None, [*WORDS, "network.clients=3"])
    told = {"say": said.append, "note": noted.append, "listeners": [come]}
    train_with_clients(transport, made, tmp_path / "run", **told)  # type: ignore[arg-type]
    why = "does not fit: its inputs: (12,); this federation's: (6,)"
    assert late_one.refused == why
    assert refusals(transport, 300) == [why]
    assert [(entry.client, entry.node, entry.reason) for entry in noted if entry.event == "refused"] == [
        ("c09", 300, why)
    ]
    assert f"refused: node 300: c09: {why}" in said
    assert all(one.refused is None for node, one in transport.workers.items() if node != 300)


def test_one_of_the_first_that_does_not_fit_is_told_when_the_others_begin(tmp_path: Path) -> None:
    transport = transport_of(groups(2), tmp_path / "clients")
    odd = transport.workers[105] = twice_as_wide(5, groups(1)[0], tmp_path / "clients")
    train_with_clients(transport, read(None, [*WORDS, "network.clients=2"]), tmp_path / "run")
    assert odd.refused is not None
    assert "(12,)" in odd.refused


def test_a_node_without_a_registered_key_is_sent_nothing(tmp_path: Path) -> None:
    transport, noted = transport_of(groups(3), tmp_path / "clients"), list[AuditEntry]()
    transport.keys = {100: "key a", 101: "key b", 102: "stranger"}
    names = {"key a": "anna", "key b": "bert"}
    made = read(None, [*WORDS, "network.clients=2"])
    train_with_clients(transport, made, tmp_path / "run", keys=lambda: names, note=noted.append)
    assert not [message for message in transport.sent if message.node == 102]
    assert [(entry.client, entry.node) for entry in noted if entry.event == "refused"] == [("", 102)]


def test_with_keys_a_client_that_fails_is_written_down_under_its_keys_name(tmp_path: Path) -> None:
    transport, noted = transport_of(groups(3), tmp_path / "clients"), list[AuditEntry]()
    empty = Federation.from_arrays(
        [groups(1)[0], groups(1)[0]], outputs=3, standardise=False, standardise_y=False
    )  # of two clients: an error
    transport.workers[102] = ClientWorker("zoe", lambda: empty, DirectoryStore(tmp_path / "zoe"))
    transport.keys = {100 + i: f"key {i}" for i in range(3)}
    names = {f"key {i}": f"hospital-{i}" for i in range(3)}
    made = read(None, [*WORDS, "network.clients=2"])
    train_with_clients(transport, made, tmp_path / "run", keys=lambda: names, note=noted.append)
    (entry,) = [entry for entry in noted if entry.event == "refused"]
    assert (entry.client, entry.node) == ("hospital-2", 102)
    assert "a client has the data of one client" in entry.reason
