"""A client stores the model it is evaluated with and reads it back; a revoked key is refused in the next round."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from local_transport import groups, transport_of

from conftest import raises
from coterie.network.client_model import load_client_model
from coterie.network.config import read
from coterie.network.server import train_with_clients
from coterie.training.events import Event, RoundDone

WORDS = ["model.name=linear", "rounds=3", "local.steps=4", "local.batch=full", "local.lr=0.5", "network.clients=4"]


@pytest.mark.parametrize(
    "method", [["wecfl", "method.k=2"], ["ditto"], ["ifca-cam", "method.base.k=2"], ["fedem", "method.k=2"], ["local"]]
)
def test_every_client_has_the_model_it_was_evaluated_with(method: list[str], tmp_path: Path) -> None:
    clients = groups(4)
    transport = transport_of(clients, tmp_path / "clients")
    for node, worker in transport.workers.items():
        worker.save_to = tmp_path / "models" / str(node)
    made = read(None, [*WORDS, f"method.name={method[0]}", *method[1:]])
    result = train_with_clients(transport, made, tmp_path / "run")
    for client, node in enumerate(sorted(transport.workers)):
        found = load_client_model(tmp_path / "models" / str(node))
        _, _, x, y = clients[client]
        assert found.round == 3
        assert found.client == transport.workers[node].name
        assert np.mean(found.predict(x) == y) == pytest.approx(float(result.clients.accuracy[client]))
        np.testing.assert_allclose(found.predict(x, proba=True).sum(1), 1.0)
        assert len(list((tmp_path / "models" / str(node)).iterdir())) == 2


def test_a_model_that_cannot_be_stored_does_not_stop_the_federation(tmp_path: Path) -> None:
    transport = transport_of(groups(4), tmp_path / "clients")
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    first = transport.workers[min(transport.workers)]
    first.save_to, said = tmp_path / "file", list[str]()
    first.say = said.append
    result = train_with_clients(transport, read(None, [*WORDS, "method.name=fedavg"]), tmp_path / "run")
    assert len(result.clients.ids) == 4
    assert any("could not be stored" in line for line in said)


def test_what_is_not_a_model_is_refused(tmp_path: Path) -> None:
    with raises("run-not-found"):
        load_client_model(tmp_path)
    transport = transport_of(groups(4), tmp_path / "clients")
    place = tmp_path / "model"
    transport.workers[min(transport.workers)].save_to = place
    train_with_clients(transport, read(None, [*WORDS, "method.name=fedavg"]), tmp_path / "run")
    said = json.loads((place / "client-model.json").read_text(encoding="utf-8"))
    for change, code in (
        ({"network": said["network"] | {"name": "os:getcwd"}}, "trust-needed"),
        ({"file": "../model.safetensors"}, "run-damaged"),
        ({"format": "other"}, "run-version"),
    ):
        (place / "client-model.json").write_text(json.dumps(said | change), encoding="utf-8")
        with raises(code):
            load_client_model(place)


def test_a_key_that_is_revoked_during_a_run_is_refused_from_the_next_round_on(tmp_path: Path) -> None:
    transport, said = transport_of(groups(4), tmp_path / "clients"), list[str]()
    nodes = sorted(transport.workers)
    transport.keys = {node: f"key {node}" for node in nodes}
    names = {f"key {node}": f"c{node}" for node in nodes}

    def revoke(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 1:
            del names[f"key {nodes[2]}"]

    made = read(None, [*WORDS, "method.name=fedavg", "network.clients=3"])
    result = train_with_clients(
        transport, made, tmp_path / "run", keys=lambda: names, listeners=[revoke], say=said.append
    )
    assert [event.asked for event in result.history] == [4, 3, 3]
    assert result.clients.ids.tolist() == [0, 1, 3]
    assert any("revoked" in line and f"c{nodes[2]}" in line for line in said)
