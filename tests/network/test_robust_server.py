"""A robust aggregator around the methods of a server with real clients, one of which is hostile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from local_transport import LocalTransport, groups, transport_of

import coterie
from conftest import few
from coterie.client.contract import FitAnswer
from coterie.core.codec import pack
from coterie.core.registry import METHODS, NO_CODE
from coterie.data.federation import Federation
from coterie.layers.robust import Robust
from coterie.methods.fesem import FeSEM
from coterie.network import engine as engine_module
from coterie.network.audit import AuditEntry
from coterie.network.config import DEFENCE, defence_line, read
from coterie.network.messages import VisitReply, read_as_server
from coterie.network.registry import ClientRegistry
from coterie.network.server import train_with_clients
from coterie.network.wire import Payload, encode
from coterie.training.build import build_method
from coterie.training.result import Result

CLIENTS = 8
WORDS = ("model=linear", "rounds=3", "local.steps=6", "local.batch=8", "local.lr=0.2", "network.clients=7")
SIMULATION_ONLY = {"given", "oracle"}  # they need groups, which a network's roster does not have
NAMES = sorted(set(METHODS.places) - SIMULATION_ONLY)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))


def served(folder: Path, *words: str, bend: Callable[[int, Payload], Payload] | None = None) -> Result[Any]:
    transport: LocalTransport = transport_of(groups(CLIENTS), folder / "clients")
    for one in transport.workers.values():
        one.allowed = ("describe",)
    if bend is not None:
        transport.bend = bend
    return train_with_clients(transport, read(None, [*WORDS, *words]), folder / "run")


def words_of(name: str) -> list[str]:
    fields = {f.name: f for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    fitting = {"k": 2, "warmup": 1, "rank": 1, "size": 2, "classes": 3}
    given = [f"method.{key}={value}" for key, value in fitting.items() if key in fields]
    if issubclass(METHODS.find(name, NO_CODE), FeSEM):
        given.append("method.alpha=0")  # the first clustering asks nobody but the round's cohort
    if "base" in fields and "section" in fields:
        given.append("method.section=['*bias']")
    if "base" in fields and fields["base"].default is dataclasses.MISSING:
        given += ["method.base.name=wecfl", "method.base.k=2"]
    return [f"method={name}", *given, "aggregator.name=centered-clipping", "aggregator.floor=3"]


@pytest.mark.parametrize("name", few(NAMES, "fedavg", "wecfl", "ifca-cam", "stocfl", "fedrep", "feddrift", "halves"))
def test_it_does_what_it_does_in_a_simulation(name: str, tmp_path: Path) -> None:
    """The same models, and the same record of what was clipped, quarantined and below the floor."""
    words = words_of(name)
    server = served(tmp_path, *words)
    config = read(None, [*WORDS, *words])
    simulated = coterie.run(
        *(build_method(config), Federation.from_arrays(groups(CLIENTS), outputs=3, standardise=False), "linear"),
        rounds=3,
        engine="sequential",
        aggregator=config.aggregator,
    )
    assert [one.layers.get("aggregator") for one in server.history] == [
        one.layers.get("aggregator") for one in simulated.history
    ]
    assert all("aggregator" in one.layers for one in server.history)
    theirs, ours = (pack(result.state)[1] for result in (server, simulated))
    for a, b in zip(theirs, ours, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5, equal_nan=True)


class Turned:
    """Node 103 sends its update against what it has learnt, so many times as long."""

    def __init__(self, times: float) -> None:
        self.times = times

    def __call__(self, node: int, payload: Payload) -> Payload:
        report = read_as_server(payload)
        if node != 103 or not isinstance(report, VisitReply):
            return payload
        return encode(dataclasses.replace(report, answers=tuple(map(self._turned, report.answers))))

    def _turned(self, answer: Any) -> Any:
        if not isinstance(answer, FitAnswer) or answer.theta is None:
            return answer
        return dataclasses.replace(answer, theta=-self.times * answer.theta)


def test_one_that_is_far_from_all_others_is_left_out_and_not_banned(tmp_path: Path) -> None:
    """It may be honest and alone; one that is far too long is refused, and counts towards a ban."""
    words = ["method=wecfl", "method.k=3", "network.refusals=1", "update_bound=0"]
    open_door = served(tmp_path / "open", *words, bend=Turned(3))
    where = open_door.state.labels.at(torch.arange(CLIENTS)).tolist()
    assert where.count(where[3]) == 1  # it took a cluster for itself
    rule = ["aggregator=median", "aggregator.isolated=1.5", "aggregator.reject=0"]
    guarded = served(tmp_path / "guarded", *words, *rule, bend=Turned(3))
    assert all(event.layers["aggregator"]["quarantined"] == [3] for event in guarded.history)
    where = guarded.state.labels.at(torch.arange(CLIENTS)).tolist()
    assert where.count(where[3]) > 1
    assert not ClientRegistry.read(tmp_path / "guarded" / "run").banned
    strict = served(tmp_path / "strict", *words, "aggregator=median", bend=Turned(50))
    assert [event.rejected for event in strict.history] == [(3,), (), ()]
    assert list(ClientRegistry.read(tmp_path / "strict" / "run").banned) == ["c03"]


# ------------------------------------------------------------------------------------------- what is on by default


def test_bounds_are_on_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    assert read(None).aggregator == DEFENCE
    assert read(None, ["aggregator=null"]).aggregator is None
    assert read(None, ["aggregator=median"]).aggregator == Robust(name="median")
    private = read(None, ["privacy={epsilon: 8, evaluation: trusted}", "method=fedavg"])
    assert private.aggregator is None, "looking at every update is not accounted for"
    undefended = read(None, ["aggregator=null"])
    assert read(None, base=undefended.dump()).aggregator is None, "a run goes on as it began"
    assert read(None, base=read(None).dump()).aggregator == DEFENCE
    assert coterie.run(coterie.FedAvg(), groups(4), "linear", rounds=1).settings.aggregator is None  # simulations


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "scaled down to 4 times the median norm and rejected beyond 10 times, nobody weighs more than 4"),
        ((), "Not on: quarantine, which would lose a true cluster of two"),
        (("aggregator=null",), "nothing is on but update_bound=10, as configured"),
        (("aggregator=median",), "fewer than 2 others near it is quarantined (as configured)"),
        (("privacy={epsilon: 8, evaluation: trusted}", "method=fedavg"), "nothing is on, because of privacy"),
    ],
)
def test_a_server_says_what_is_on_and_what_is_not(words: tuple[str, ...], told: str) -> None:
    assert told in defence_line(read(None, words))


def test_a_long_update_is_scaled_down_and_a_lonely_one_is_reported(tmp_path: Path) -> None:
    """By default: the round goes on with both, and the console names the client once."""
    said: list[str] = []
    noted: list[AuditEntry] = []
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")
    transport.bend = Turned(6)
    config = read(None, [*WORDS, "method=fedavg", "network.clients=8"])
    result = train_with_clients(transport, config, tmp_path / "run", say=said.append, note=noted.append)
    assert defence_line(config) in said
    assert not any(event.missing for event in result.history)
    assert len(result.history[-1].layers["aggregator"]["clipped"]) == 1
    warned = [line for line in said if line.startswith("warning: client")]
    assert len(warned) == 1
    assert "fewer than 2 other clients are near its update in round" in warned[0]
    assert sum(entry.event == "isolated" for entry in noted) >= 2


def test_honest_clients_are_not_reported(tmp_path: Path) -> None:
    said: list[str] = []
    transport = transport_of(groups(CLIENTS), tmp_path / "clients")
    train_with_clients(
        transport, read(None, [*WORDS, "method=fedavg", "network.clients=8"]), tmp_path / "run", say=said.append
    )
    assert not [line for line in said if "warning" in line]
