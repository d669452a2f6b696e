"""`coterie server --inspect`: the same answer as in a simulation, over payloads, and nothing is kept anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_transport import groups, transport_of

import coterie
from conftest import raises
from coterie.data.federation import Federation
from coterie.network import server as server_run
from coterie.network.config import read
from coterie.network.server import inspect_with_clients
from coterie.network.wire import Payload

WORDS = ("network.clients=8", "network.patience=5", "local.batch=8")


def test_it_asks_the_connected_clients_and_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = groups(8)
    transport = transport_of(clients, tmp_path)
    monkeypatch.setattr(server_run, "train", None)  # would fail
    config = read(None, WORDS)
    found = inspect_with_clients(transport, config)
    assert found.names == tuple(f"c{i:02d}" for i in range(8))
    assert [place.name for place in found.places] == list(found.names)
    assert (found.k, found.sizes) == (2, (4, 4))
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not kept  # no client keeps a state
    data = Federation.from_arrays(clients, outputs=3, standardise=False)
    here = coterie.inspect(data, "linear", local=config.local)
    assert here.assignments == found.assignments
    assert here.resampled.r2 == pytest.approx(found.resampled.r2, rel=1e-4)


def test_what_clients_send_is_small(tmp_path: Path) -> None:
    """Sketches: six of at most 256 numbers each, here 21, and no model."""
    transport = transport_of(groups(8), tmp_path)
    largest: list[int] = []

    def bend(_: int, payload: Payload) -> Payload:
        largest.append(payload.size)
        return payload

    transport.bend = bend
    inspect_with_clients(transport, read(None, WORDS))
    assert max(largest) < 6 * 256 * 4 + 4096


def test_a_client_that_fails_is_named(tmp_path: Path) -> None:
    transport = transport_of(groups(9), tmp_path)
    began: list[int] = []

    def bend(node: int, payload: object) -> object:
        began.append(node)
        return None if node == 103 and began.count(103) > 1 else payload

    transport.bend = bend  # type: ignore[assignment]
    found = inspect_with_clients(transport, read(None, ["network.clients=9", "network.deadline=1", *WORDS[1:]]))
    assert [missing.who for missing in found.missing] == ["client 'c03'"]
    assert "1 did not answer; client 'c03': no answer within 1 s" in str(found)


def test_explain_needs_the_data(tmp_path: Path) -> None:
    from coterie.core.errors import CoterieError
    from coterie.insight.inspect import inspect_clients

    def explained(run: object, local: object) -> object:
        return inspect_clients(run, local, explain=True)  # type: ignore[arg-type]

    transport = transport_of(groups(8), tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_run, "inspect_clients", explained)
        with raises("data-needed", match="stay with the clients") as caught:
            inspect_with_clients(transport, read(None, WORDS))
    assert isinstance(caught.value, CoterieError)
