"""The network engine, its registry and its clients' workers, without a network: the same results as in one process."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_transport import groups, transport_of, worker

import coterie
from conftest import UNTOLD, few, raises
from coterie.core.codec import pack
from coterie.data.federation import Federation
from coterie.engines.choose import local_of
from coterie.network import engine as engine_module
from coterie.network.config import ServerConfig, read
from coterie.network.engine import VERSION, NoReply
from coterie.network.messages import VisitReply, VisitRequest, read_as_client, read_as_server
from coterie.network.registry import ClientRegistry
from coterie.network.server import train_with_clients
from coterie.network.wire import EncodedTensor, Payload, encode
from coterie.training.build import build_method
from coterie.training.events import Event, RoundDone
from coterie.training.result import Result

CLIENTS = 6
WORDS = ("rounds=3", "model=linear", f"network.clients={CLIENTS}", "local.epochs=2", "local.batch=8", "local.lr=0.2")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))
    monkeypatch.setattr(engine_module, "CONNECTION_CHECK", 0.01)


def config(*words: str) -> ServerConfig:
    return read(None, [*WORDS, *words])


def in_process(made: ServerConfig, clients: int = CLIENTS) -> Result[Any]:
    """The same run by the reference engine."""
    federation = Federation.from_arrays(groups(clients), outputs=3, standardise=False)
    settings = made.settings
    return coterie.run(
        build_method(made),
        federation,
        "linear",
        rounds=settings.rounds,
        seed=settings.seed,
        participation=settings.participation,
        evaluate_every=settings.evaluate_every,
        aggregator=settings.aggregator,
        engine="sequential",
    )


def tensors(state: object) -> list[torch.Tensor]:
    return pack(state)[1]


def same(one: Result[Any], other: Result[Any]) -> None:
    for a, b in zip(tensors(one.state), tensors(other.state), strict=True):
        assert torch.equal(a, b)
    assert one.clients.ids.tolist() == other.clients.ids.tolist()
    assert torch.equal(one.clients.accuracy, other.clients.accuracy)
    if one.clients.choice is not None:
        assert other.clients.choice is not None
        assert one.clients.choice.tolist() == other.clients.choice.tolist()


WRAPPED = {
    "cam": ("method.base.name=ifca", "method.base.k=2"),
    "personal": ("method.base.name=ifca", "method.base.k=2", "method.section=['*bias']"),
    "ifca-personal": ("method.section=['*bias']",),  # the head of a single layer is all of it
}


@pytest.mark.parametrize("method", few(UNTOLD, "fedavg", "ditto", "ifca", "wecfl", "fedem", "fedsoft", "ifca-cam"))
def test_every_method_gives_the_bits_of_one_process(method: str, tmp_path: Path) -> None:
    made = config(f"method.name={method}", *WRAPPED.get(method, ()))
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")
    for one in transport.workers.values():
        one.allowed = ("describe",)  # what methods by descriptions of data ask for
    there = train_with_clients(transport, made, tmp_path / "run")
    same(there, in_process(made))


@pytest.mark.parametrize("words", [("local.momentum=0.9", "local.keep_optimizer=true"), ("participation=0.5",)])
def test_what_clients_keep_and_who_is_drawn_are_the_same(words: tuple[str, ...], tmp_path: Path) -> None:
    made = config("method.name=ditto", "rounds=4", *words)
    there = train_with_clients(transport_of(groups(CLIENTS), tmp_path / "clients"), made, tmp_path / "run")
    same(there, in_process(made))


def test_a_learning_rate_is_searched_for_with_real_clients_too(tmp_path: Path) -> None:
    made = config("method.name=ditto", "local.lr=auto", "local.momentum=0.9", "local.keep_optimizer=true")
    said: list[str] = []
    there = train_with_clients(
        transport_of(groups(CLIENTS), tmp_path / "clients"), made, tmp_path / "run", say=said.append
    )
    assert any(line.startswith("local.lr: auto tried 5 clients") for line in said)
    here = in_process(made)
    assert local_of(there.method).lr == local_of(here.method).lr != "auto"
    same(there, here)
    assert coterie.load(tmp_path / "run").method == there.method


class StopError(Exception):
    pass


def stop_after(round_: int) -> Any:
    def listen(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == round_:
            raise StopError

    return listen


@pytest.mark.parametrize("checkpoint_every", [1, 3])
def test_a_server_that_was_killed_goes_on_to_the_same_bits(checkpoint_every: int, tmp_path: Path) -> None:
    """Clients' own models are ahead of the server's checkpoint when it comes back."""
    made = config("method.name=ditto", "rounds=6", f"checkpoint_every={checkpoint_every}", "local.keep_optimizer=true")
    whole = train_with_clients(transport_of(groups(CLIENTS), tmp_path / "a"), made, tmp_path / "whole")
    transport = transport_of(groups(CLIENTS), tmp_path / "b")
    with pytest.raises(StopError):
        train_with_clients(transport, made, tmp_path / "run", listeners=[stop_after(5)])
    again = train_with_clients(transport, made, tmp_path / "run", resume=True)
    same(again, whole)
    assert [event.round for event in again.history][-1] == 6


def test_clients_throw_away_what_nobody_will_ask_for(tmp_path: Path) -> None:
    made = config("method.name=ditto", "rounds=8")
    train_with_clients(transport_of(groups(CLIENTS), tmp_path / "clients"), made, tmp_path / "run")
    kept = list((tmp_path / "clients" / "c00").rglob("*.safetensors"))
    assert 2 <= len(kept) <= 4


def test_a_client_that_lost_what_it_kept_begins_afresh(tmp_path: Path) -> None:
    made = config("method.name=ditto", "rounds=4")
    said: list[str] = []
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")

    def forget(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 2:
            for file in (tmp_path / "clients" / "c03").rglob("*.safetensors"):
                file.unlink()

    result = train_with_clients(transport, made, tmp_path / "run", listeners=[forget], say=said.append)
    assert any("c03" in line and "started with a new one" in line for line in said)
    assert len(result.clients.ids) == CLIENTS


def test_a_lost_report_leaves_no_trace(tmp_path: Path) -> None:
    """The client has trained and kept its model, the server never hears of it: next time it starts from before."""
    made = config("method.name=ditto", "rounds=1", "quorum=0", "network.deadline=0.05")
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")
    lose = 100 + 2
    transport.bend = lambda node, payload: None if node == lose and _is_report(payload) else payload
    train_with_clients(transport, made, tmp_path / "run", say=print)
    later = config("method.name=ditto", "rounds=2", "quorum=0", "network.deadline=0.05")
    transport.bend = lambda _, payload: payload
    transport.sent.clear()
    train_with_clients(transport, later, tmp_path / "run", resume=True)
    bases = {message.node: _base(message.payload) for message in transport.sent if _base(message.payload) != "hello"}
    assert bases[lose] is not None  # by the second evaluation it keeps what it trained in round 2 ...
    first = next(
        _base(message.payload)
        for message in transport.sent
        if message.node == lose and _base(message.payload) != "hello"
    )
    assert first is None  # ... which began as if round 1 had never been


def _is_report(payload: Payload) -> bool:
    return isinstance(read_as_server(payload), VisitReply)


def _base(payload: Payload) -> int | str | None:
    asked = read_as_client(payload)
    return asked.base if isinstance(asked, VisitRequest) else "hello"


# -------------------------------------------------------------------------------------------- coming and going


def test_a_client_that_comes_in_mid_training_is_taken_in(tmp_path: Path) -> None:
    made = config("method.name=wecfl", "method.k=2", "rounds=6")
    said: list[str] = []
    everyone = groups(CLIENTS + 2)
    transport = transport_of(everyone[:CLIENTS], tmp_path / "clients")

    def come(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 2:
            transport.workers |= {200 + i: worker(i, everyone[i], tmp_path / "clients") for i in (CLIENTS, CLIENTS + 1)}

    result = train_with_clients(transport, made, tmp_path / "run", listeners=[come], say=said.append)
    assert result.clients.ids.tolist() == list(range(CLIENTS + 2))
    found = result.clients.choice
    assert found is not None
    assert len({int(found[i]) for i in range(0, CLIENTS + 2, 2)}) == 1
    assert len({int(found[i]) for i in range(1, CLIENTS + 2, 2)}) == 1
    assert found[0] != found[1]
    assert [event.asked for event in result.history] == [6, 6, 8, 8, 8, 8]
    assert any("c07" in line for line in said)


def test_a_client_that_leaves_is_missed_and_returns_under_its_old_id(tmp_path: Path) -> None:
    made = config("method.name=ifca", "method.k=2", "rounds=6", "network.clients=4")
    clients = groups(CLIENTS)
    transport = transport_of(clients, tmp_path / "clients")

    def change(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 2:
            del transport.workers[101]
        if isinstance(event, RoundDone) and event.round == 4:
            transport.workers[999] = worker(1, clients[1], tmp_path / "clients")  # a new node, the old name

    result = train_with_clients(transport, made, tmp_path / "run", listeners=[change])
    assert [event.asked for event in result.history] == [6, 6, 5, 5, 6, 6]
    assert result.clients.ids.tolist() == list(range(CLIENTS))


def test_who_leaves_during_a_visit_is_not_waited_for(tmp_path: Path) -> None:
    made = config("method.name=fedavg", "rounds=2", "network.clients=4", "network.deadline=3600")
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")

    def bend(node: int, payload: Payload) -> Payload | None:
        if node == 103 and _is_report(payload):
            transport.workers.pop(103, None)
            return None
        return payload

    transport.bend = bend
    result = train_with_clients(transport, made, tmp_path / "run")
    assert [(m.client, m.reason) for m in result.history[0].missing] == [(3, "disconnected during the visit")]
    assert result.history[1].asked == CLIENTS - 1


def test_a_deadline_and_a_quorum(tmp_path: Path) -> None:
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")
    transport.bend = lambda node, payload: None if node in (101, 102) and _is_report(payload) else payload
    made = config("method.name=fedavg", "rounds=1", "network.deadline=0.05", "quorum=0.6")
    result = train_with_clients(transport, made, tmp_path / "run")
    assert [m.client for m in result.history[0].missing] == [1, 2]
    assert "no answer within 0.05 s" in result.history[0].missing[0].reason
    with raises("quorum", match="4 of 6 clients answered, the quorum is 5"):
        train_with_clients(
            transport, config("method.name=fedavg", "network.deadline=0.05", "quorum=0.8"), tmp_path / "run2"
        )


def test_enough_ends_a_visit_early(tmp_path: Path) -> None:
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")
    transport.bend = lambda node, payload: None if node == 105 and _is_report(payload) else payload
    made = config("method.name=fedavg", "rounds=1", "network.deadline=3600", "network.enough=0.8")
    result = train_with_clients(transport, made, tmp_path / "run")
    assert [(m.client, m.reason) for m in result.history[0].missing] == [(5, "no longer needed")]


def test_patience_ends_the_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 3))
    monkeypatch.setattr("coterie.network.engine.time.monotonic", lambda: float(next(clock)))
    with raises("clients-absent", match=r"network.patience: after 5 s only 2 of 6 clients"):
        train_with_clients(
            transport_of(groups(2), tmp_path / "clients"), config("network.patience=5"), tmp_path / "run"
        )


# -------------------------------------------------------------------------------------------------- strangers


def nan_model(payload: Payload) -> Payload:
    arrays = [EncodedTensor(a.dtype, a.shape, np.full(a.shape, np.nan, np.float32).tobytes()) for a in payload.arrays]
    return Payload(payload.outline, tuple(arrays))


def short_model(payload: Payload) -> Payload:
    report = read_as_server(payload)
    assert isinstance(report, VisitReply)
    answer: Any = report.answers[0]
    short = dataclasses.replace(answer, theta=answer.theta[:-1].clone())
    return encode(dataclasses.replace(report, answers=(short,)))


def another_client(payload: Payload) -> Payload:
    report = read_as_server(payload)
    assert isinstance(report, VisitReply)
    return encode(dataclasses.replace(report, client=0))


def larger(payload: Payload) -> Payload:
    report = read_as_server(payload)
    assert isinstance(report, VisitReply)
    answer: Any = report.answers[0]
    return encode(dataclasses.replace(report, answers=(dataclasses.replace(answer, n=10_000),)))


def bomb(payload: Payload) -> Payload:
    """A model of 100 MB where 84 bytes were asked for, as a message of 100 KB; all of it is named."""
    outline = json.loads(payload.outline)
    outline["zlib"], outline["tensors"] = True, [[0, 0, [100 << 18]]]
    return Payload(json.dumps(outline), (EncodedTensor("float32", (100 << 18,), zlib.compress(bytes(100 << 20))),))


HOSTILE: dict[str, tuple[Callable[[Payload], Payload | NoReply], str]] = {
    "weight": (larger, "10000 samples"),
    "NaN": (nan_model, "NaN or Inf"),
    "shape": (short_model, "theta"),
    "other": (another_client, "answered a different request"),
    "bomb": (bomb, "larger than the 32"),  # 84 for the model, 2 x 16 KiB for outlines
    "many": (lambda payload: Payload(payload.outline, payload.arrays * 2), "at most 1 arrays"),
    "noise": (lambda _: Payload("{]", ()), ""),
    "huge": (lambda payload: Payload(" " * (32 << 20), payload.arrays), ""),
    "lost": (lambda _: NoReply("Flower says: no (code 5)"), "code 5"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_reply_that_cannot_be_is_refused_logged_and_survived(how: str, tmp_path: Path) -> None:
    made = config("method.name=fedavg", "rounds=2")
    said: list[str] = []
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")
    bend, words = HOSTILE[how]
    fits: list[int] = []

    def once(node: int, payload: Payload) -> Payload | NoReply | None:
        if node == 104 and _is_report(payload) and not fits:
            fits.append(node)
            return bend(payload)
        return payload

    transport.bend = once
    result = train_with_clients(transport, made, tmp_path / "run", say=said.append)
    (missing,) = result.history[0].missing
    assert missing.client == 4
    assert words in missing.reason
    assert any("c04" in line for line in said)
    assert not result.history[1].missing


def test_with_keys_a_client_is_who_its_key_says(tmp_path: Path) -> None:
    transport = transport_of(groups(4), tmp_path / "clients")
    said: list[str] = []
    transport.workers[103].name = "c00"  # the fourth claims to be the first
    transport.keys = {100: "key a\n", 101: "key b\n", 102: "stranger", 103: "key d"}
    names = {"key a": "anna", "key b": "bert", "key d": "dora"}
    made = read(None, [*WORDS, "method.name=fedavg", "network.clients=3"])
    result = train_with_clients(transport, made, tmp_path / "run", keys=lambda: names, say=said.append)
    assert ClientRegistry.read(tmp_path / "run").names == ("anna", "bert", "dora")
    assert any("102" in line and "key" in line for line in said)
    assert len(result.clients.ids) == 3


def test_data_that_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    clients = groups(CLIENTS)
    transport = transport_of(clients, tmp_path / "clients")
    said: list[str] = []
    x, y, x_test, y_test = clients[0]
    wide = (np.concatenate([x, x], 1), y, np.concatenate([x_test, x_test], 1), y_test)

    def come(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 1:
            transport.workers[300] = worker(9, wide, tmp_path / "clients")

    result = train_with_clients(
        transport, config("method.name=fedavg"), tmp_path / "run", listeners=[come], say=said.append
    )
    assert any("300" in line and "(12,)" in line for line in said)
    assert len(result.clients.ids) == CLIENTS


def test_a_greeting_that_was_lost_is_repeated(tmp_path: Path) -> None:
    transport, lost = transport_of(groups(CLIENTS), tmp_path / "clients"), set[int]()

    def bend(node: int, payload: Payload) -> Payload | NoReply:
        if node == 102 and node not in lost:
            lost.add(node)
            return NoReply("Flower says: gone (code 3)")
        return payload

    transport.bend = bend
    assert len(train_with_clients(transport, config("method.name=fedavg"), tmp_path / "run").clients.ids) == CLIENTS
    assert lost


def test_one_of_the_first_that_does_not_fit_is_left_outside(tmp_path: Path) -> None:
    clients = groups(CLIENTS)
    transport = transport_of(clients, tmp_path / "clients")
    x, y, x_test, y_test = clients[0]
    wide = (np.concatenate([x, x], 1), y, np.concatenate([x_test, x_test], 1), y_test)
    transport.workers[105] = worker(5, wide, tmp_path / "clients")
    said: list[str] = []
    made = config("method.name=fedavg", f"network.clients={CLIENTS - 1}")
    result = train_with_clients(transport, made, tmp_path / "run", say=said.append)
    assert len(result.clients.ids) == CLIENTS - 1
    assert any("c05" in line and "(12,)" in line for line in said)


def test_a_network_named_over_the_wire_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(6, 3)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = config("model.name=nets:Net", "method.name=fedavg", "rounds=1")
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")
    with raises("quorum"):
        train_with_clients(transport, made, tmp_path / "run")
    for one in transport.workers.values():
        one.trusted = ("nets:Net",)
    assert len(train_with_clients(transport, made, tmp_path / "again").clients.ids) == CLIENTS


def test_ids_are_written_down_before_they_are_used(tmp_path: Path) -> None:
    made = config("method.name=fedavg", "rounds=2")

    def look(event: Event) -> None:
        if isinstance(event, RoundDone):
            assert ClientRegistry.read(tmp_path / "run").names == tuple(f"c{i:02d}" for i in range(CLIENTS))

    train_with_clients(transport_of(groups(CLIENTS), tmp_path / "clients"), made, tmp_path / "run", listeners=[look])


def test_the_servers_memory_of_a_client_is_a_number(tmp_path: Path) -> None:
    made = config("method.name=ditto", "rounds=2")
    result = train_with_clients(transport_of(groups(CLIENTS), tmp_path / "clients"), made, tmp_path / "run")
    assert all(set(result.memory.read(c)) == {VERSION} for c in range(CLIENTS))


@pytest.mark.parametrize("word", ["dropout=0.1", "newcomers=0.2", "evaluate_whom=met"])
def test_what_is_for_simulations_is_refused(word: str) -> None:
    with raises("config-conflict"):
        config(word)


def test_a_file_for_a_simulation_will_do(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data: {name: digits}\nengine: workers\nmethod: {name: ifca, k: 3}\nrounds: 7\n")
    made = read(file, ["network.clients=4"])
    assert (made.method.name, made.method.params, made.rounds, made.network.clients) == ("ifca", {"k": 3}, 7, 4)
    assert made.checkpoint_every == 1


def test_compressed_parcels_give_the_same(tmp_path: Path) -> None:
    plain = train_with_clients(
        transport_of(groups(CLIENTS), tmp_path / "a"), config("method.name=ifca"), tmp_path / "plain"
    )
    made = config("method.name=ifca", "network.compress=true")
    transport, answered = transport_of(groups(CLIENTS), tmp_path / "b"), list[Payload]()
    transport.bend = lambda _, payload: answered.append(payload) or payload  # type: ignore[func-returns-value]
    same(train_with_clients(transport, made, tmp_path / "packed"), plain)
    assert [payload.compressed for payload in answered] == [message.payload.compressed for message in transport.sent]
    assert any(payload.compressed for payload in answered)


def test_an_errand_carries_what_its_client_needs_only(tmp_path: Path) -> None:
    """Of WeCFL's three models a client is sent its own."""
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")
    train_with_clients(transport, config("method.name=wecfl", "method.k=3", "rounds=3"), tmp_path / "run")
    size = (6 + 1) * 3 * 4
    assert all(sum(len(a.data) for a in message.payload.arrays) <= size for message in transport.sent)


@pytest.mark.parametrize("method", ["wecfl", "ditto", "fedsoft", "stocfl"])
def test_a_run_is_read_back_and_serves_newcomers(method: str, tmp_path: Path) -> None:
    everyone = groups(CLIENTS + 2)
    made = config(f"method.name={method}")
    ran = train_with_clients(transport_of(everyone[:CLIENTS], tmp_path / "clients"), made, tmp_path / "run")
    found = coterie.load(tmp_path / "run")
    assert found.accuracy == ran.accuracy
    assert found.assignments.tolist() == ran.assignments.tolist()
    for a, b in zip(tensors(found.state), tensors(ran.state), strict=True):
        assert torch.equal(a, b)
    placed = found.admit(everyone[CLIENTS:])
    assert len(placed.assignments) == 2
    assert placed.predict(0, everyone[CLIENTS][2]).shape == (12,)
    with raises("data-needed", match="the data is with the clients"):
        _ = found.federation
    if method in ("wecfl", "stocfl"):
        said = found.network(int(found.assignments[0]))(torch.from_numpy(everyone[0][2])).argmax(1)
        assert found.predict(0, everyone[0][2]).tolist() == said.tolist()
        with raises("data-shape", match="do not fit the model"):
            found.predict(0, everyone[0][2][:, :5])
    else:
        with raises("result-ambiguous"):
            found.predict(0, everyone[0][2])
    with raises("model-shape"):
        found.admit([(everyone[0][0][:, :5], everyone[0][1])])
    assert placed.accuracy is not None
