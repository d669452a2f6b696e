"""Over a network only what is trained is sent; a client that has another frozen part is sent the right one, once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_transport import LocalTransport, groups, transport_of, worker

import coterie
from conftest import raises
from coterie.core.codec import pack
from coterie.data.federation import Federation
from coterie.network import engine as engine_module
from coterie.network.client_state import DirectoryStore
from coterie.network.config import read
from coterie.network.messages import PROTOCOL, FrozenWanted, ModelSpec, VisitRequest, read_as_client
from coterie.network.server import train_with_clients
from coterie.network.wire import encode
from coterie.network.worker import ClientWorker
from coterie.training.build import build_method
from coterie.training.tuned import Tuned
from coterie.zoo import MLP

CLIENTS = 4
NET = "frozen_nets:Net"
WORDS = ("rounds=3", "method=wecfl", "method.k=2", f"network.clients={CLIENTS}", "local.epochs=2", "local.lr=0.2")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))


@pytest.fixture
def nets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module with a network of the user's own, whose frozen body can be changed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "training"))
    import frozen_nets

    before = list(frozen_nets.body)
    yield frozen_nets
    frozen_nets.body[:] = before


def states(result: coterie.Result[Any]) -> list[torch.Tensor]:
    return pack(result.state)[1]


def requests(transport: LocalTransport) -> list[VisitRequest]:
    found = [read_as_client(message.payload) for message in transport.sent]
    return [one for one in found if isinstance(one, VisitRequest)]


def in_process(words: tuple[str, ...], model: Any) -> coterie.Result[Any]:
    made = read(None, words)
    federation = Federation.from_arrays(groups(CLIENTS), outputs=3, standardise=False, standardise_y=False)
    bounds = made.settings.aggregator  # a server with real clients has them by default
    return coterie.run(build_method(made), federation, model, rounds=3, engine="sequential", aggregator=bounds)


@pytest.mark.parametrize("part", ["head", "adapters"])
def test_a_part_is_trained_over_a_network_to_the_bits_of_a_simulation(part: Any, tmp_path: Path) -> None:
    words = (*WORDS, "model=mlp", "model.hidden=[32,32]", f"model.train={part}")
    transport = transport_of(groups(CLIENTS), tmp_path / "state")
    result = train_with_clients(transport, read(None, words), tmp_path / "run")
    plain = in_process(words, Tuned(MLP(hidden=(32, 32)), part))
    assert all(torch.equal(a, b) for a, b in zip(states(result), states(plain), strict=True))
    assert all(one.frozen is None for one in requests(transport))  # built there to the same hash: nothing to send
    assert max(message.payload.size for message in transport.sent) < 4 * 2 * result.model.size + 4000
    again = coterie.load(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(states(again), states(result), strict=True))


def test_a_client_with_another_frozen_part_is_sent_the_right_one_once(nets: Any, tmp_path: Path) -> None:
    words = (*WORDS, f"model={NET}")
    plain = in_process(words, nets.Net())
    transport = transport_of(groups(CLIENTS), tmp_path / "state")
    for number, one in enumerate(transport.workers.values()):
        one.trusted = (NET,)
        _ = one.federation
        if number % 2:  # these build another body
            one._model = _changed(one._model, nets)  # type: ignore[method-assign]
    result = train_with_clients(transport, read(None, words), tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(states(result), states(plain), strict=True))
    sent = [one.client for one in requests(transport) if one.frozen is not None]
    assert sorted(sent) == [1, 3]
    # A client that starts again has it on its disk.
    back = worker(1, groups(CLIENTS)[1], tmp_path / "state")
    back.trusted = (NET,)
    back._model = _changed(back._model, nets)  # type: ignore[method-assign]
    asked = requests(transport)[0]
    assert back._prepared(asked) is None
    fresh = worker(1, groups(CLIENTS)[1], tmp_path / "elsewhere")
    fresh.trusted, fresh._model = (NET,), _changed(fresh._model, nets)  # type: ignore[method-assign]
    assert isinstance(fresh._prepared(asked), FrozenWanted)


def test_a_client_that_asks_again_and_again_is_not_served(nets: Any, tmp_path: Path) -> None:
    transport = transport_of(groups(CLIENTS), tmp_path / "state")
    for one in transport.workers.values():
        one.trusted = (NET,)

    def bent(node: int, payload: Any) -> Any:
        asked = requests(transport)[-1] if requests(transport) else None
        if node != 102 or asked is None or asked.client != 2:
            return payload
        return encode(FrozenWanted(PROTOCOL, asked.run, 2, asked.network.frozen))

    transport.bend = bent
    said: list[str] = []
    made = read(None, (*WORDS, f"model={NET}", "network.refusals=0"))
    train_with_clients(transport, made, tmp_path / "run", say=said.append)
    assert any("asked for a frozen part that it has" in line for line in said)
    assert sum(one.frozen is not None for one in requests(transport)) == 3


def _changed(build: Any, nets: Any) -> Any:
    """A client's own building of the model, with another body."""

    def built(asked: Any) -> Any:
        before = list(nets.body)
        nets.body[:] = [2.0]
        model = build(asked)
        _ = model.blueprint
        nets.body[:] = before
        return model

    return built


def test_a_loss_by_name_is_trained_over_a_network_and_one_of_a_user_must_be_trusted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(36, 6)).astype(np.float32) for _ in range(CLIENTS)]
    arrays = [(one[:24], one[:24, :2], one[24:], one[24:, :2]) for one in x]
    workers = {
        100 + i: ClientWorker(
            f"c{i}",
            partial(Federation.from_arrays, [own], standardise=False, standardise_y=False),
            DirectoryStore(tmp_path / f"c{i}"),
        )
        for i, own in enumerate(arrays)
    }
    words = (*WORDS, "model=linear", "model.loss=mae")
    result = train_with_clients(LocalTransport(workers), read(None, words), tmp_path / "run")
    made = read(None, words)
    clients = Federation.from_arrays(arrays, standardise=False, standardise_y=False)
    model, bounds = Tuned("linear", loss="mae"), made.settings.aggregator
    plain = coterie.run(build_method(made), clients, model, rounds=3, engine="sequential", aggregator=bounds)
    assert all(torch.equal(a, b) for a, b in zip(states(result), states(plain), strict=True))
    assert result.summary.scores == plain.summary.scores
    assert result.summary.scores is not None
    assert set(result.summary.scores) == {"mae", "mse"}
    spec = ModelSpec("linear", '{"loss": "os:getcwd"}', (6,), 2, "getcwd", 14)
    with raises("trust-needed", match="the server: model.loss.name: 'os:getcwd'"):
        workers[100]._model(spec)
