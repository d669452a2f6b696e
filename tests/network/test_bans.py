"""What a client may claim and send, and what becomes of one that does not keep to it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from local_transport import LocalTransport, groups, transport_of

from conftest import raises
from coterie.client.contract import EvaluateAnswer, FitAnswer, ScoreAnswer
from coterie.core.tasks import Score
from coterie.network import engine as engine_module
from coterie.network.config import read
from coterie.network.messages import (
    ClientInfo,
    Hello,
    Refusal,
    VisitReply,
    VisitRequest,
    check_answers,
    read_as_client,
    read_as_server,
)
from coterie.network.registry import ClientRegistry
from coterie.network.server import train_with_clients
from coterie.network.wire import Payload, encode
from coterie.training.result import Result

WORDS = ("method=fedavg", "model=linear", "network.clients=6", "local.epochs=2", "local.batch=8", "local.lr=0.2")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))


class Liar:
    """One node whose reports are changed on the way."""

    def __init__(self, node: int, **claims: Any) -> None:
        self.node, self.claims = node, claims
        self.asked = 0

    def __call__(self, node: int, payload: Payload) -> Payload:
        report = read_as_server(payload)
        if node != self.node or not isinstance(report, VisitReply | ClientInfo):
            return payload
        if isinstance(report, ClientInfo):
            about = {k: v for k, v in self.claims.items() if k in ("train", "test")}
            return encode(dataclasses.replace(report, **about))
        self.asked += 1
        return encode(dataclasses.replace(report, answers=tuple(self._changed(a) for a in report.answers)))

    def _changed(self, answer: Any) -> Any:
        if isinstance(answer, FitAnswer) and answer.theta is not None and "size" in self.claims:
            return dataclasses.replace(answer, theta=torch.full_like(answer.theta, self.claims["size"]))
        if isinstance(answer, EvaluateAnswer) and "tested" in self.claims:
            return dataclasses.replace(answer, n=self.claims["tested"])
        return answer


def go(tmp_path: Path, liar: Liar, *words: str, **more: Any) -> tuple[Result[Any], list[str], LocalTransport]:
    said: list[str] = []
    transport = transport_of(groups(7), tmp_path / "clients")
    transport.bend = liar
    result = train_with_clients(transport, read(None, [*WORDS, *words]), tmp_path / "run", say=said.append, **more)
    return result, said, transport


def test_a_reply_of_1e30_is_rejected_and_its_sender_banned(tmp_path: Path) -> None:
    liar = Liar(103, size=1e30)
    result, said, _ = go(tmp_path, liar, "rounds=4", "network.refusals=2", "evaluate_every=4")
    assert [event.rejected for event in result.history] == [(3,), (3,), (), ()]
    assert [event.asked for event in result.history] == [7, 7, 6, 6]
    assert "update rejected" in result.history[0].missing[0].reason
    assert float(result.state.abs().max()) < 100
    assert any("c03" in line and "update rejected" in line for line in said)
    assert sum(line.startswith("banned: c03") for line in said) == 1
    assert liar.asked == 2
    assert list(ClientRegistry.read(tmp_path / "run").banned) == ["c03"]
    # It comes back under another node, and after the server was stopped: it stays out.
    again, said, _ = go(tmp_path, Liar(103), "rounds=5", "network.refusals=2", "evaluate_every=4", resume=True)
    assert again.history[-1].asked == 6
    assert any("c03: is banned" in line for line in said)


def test_a_banned_client_with_a_key_is_not_even_asked(tmp_path: Path) -> None:
    transport, said = transport_of(groups(7), tmp_path / "clients"), list[str]()
    transport.bend = Liar(103, size=1e30)
    transport.keys = {100 + i: f"key {i}" for i in range(7)}
    names = {f"key {i}": f"hospital-{i}" for i in range(7)}
    made = read(None, [*WORDS, "rounds=3", "network.refusals=1"])
    train_with_clients(transport, made, tmp_path / "run", keys=lambda: names, say=said.append)
    sent = [read_as_client(message.payload) for message in transport.sent if message.node == 103]
    assert [type(message) for message in sent] == [Hello, VisitRequest, Refusal]  # and told why, once
    assert any("hospital-3: is banned" in line for line in said)


def test_refusals_0_bans_nobody(tmp_path: Path) -> None:
    result, said, _ = go(tmp_path, Liar(103, size=1e30), "rounds=3", "network.refusals=0")
    assert [event.rejected for event in result.history] == [(3,)] * 3
    assert not any(line.startswith("banned") for line in said)


def test_what_a_client_could_not_do_is_not_held_against_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, said = transport_of(groups(7), tmp_path / "clients"), list[str]()

    def fail(*_: object) -> Any:
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(transport.workers[102], "_carry_out", fail)
    result = train_with_clients(
        transport, read(None, [*WORDS, "rounds=3", "network.refusals=1"]), tmp_path / "run", say=said.append
    )
    assert all("disk on fire" in event.missing[0].reason for event in result.history)
    assert not any(line.startswith("banned") for line in said)


@pytest.mark.parametrize("claim", [{"train": 2**31 - 1}, {"test": 2_000_000}])
def test_a_client_has_no_more_samples_than_the_configuration_allows(claim: dict[str, int], tmp_path: Path) -> None:
    result, said, _ = go(tmp_path, Liar(103, **claim), "rounds=1")
    assert result.history[0].asked == 6
    assert "c03" not in ClientRegistry.read(tmp_path / "run").names
    assert any("c03: claims to have" in line and "network.samples allows 1000000" in line for line in said)


def test_samples_can_be_set(tmp_path: Path) -> None:
    result, _, _ = go(tmp_path, Liar(103, test=5), "rounds=1", "network.samples=24", "network.clients=7")
    assert result.history[0].asked == 7
    assert "c03" in ClientRegistry.read(tmp_path / "run").names


def test_the_size_of_a_test_set_is_what_it_said(tmp_path: Path) -> None:
    result, said, _ = go(tmp_path, Liar(103, tested=900_000), "rounds=1")
    assert [m.client for m in result.history[0].unscored] == [3]
    assert any("evaluated on 900000 samples" in line for line in said)


def test_members_of_before_are_read(tmp_path: Path) -> None:
    go(tmp_path, Liar(-1), "rounds=1")
    file = tmp_path / "run" / "members.json"
    assert "banned" not in json.loads(file.read_text())
    assert ClientRegistry.read(tmp_path / "run").banned == {}


@pytest.mark.parametrize(
    ("rule", "scores"),
    [("votes", [2.0, -1.0]), ("votes", [1e30, 0.0]), ("posterior", [0.5, 0.6]), ("loss", [-1e30, 1.0])],
)
def test_scores_that_cannot_be_are_refused(rule: Any, scores: list[float]) -> None:
    with raises("wire-answer-invalid", match="scores"):
        check_answers((ScoreAnswer(3, torch.tensor(scores)),), (Score(torch.zeros(2, 4), rule),), 4)
    fine = {"votes": [0.25, 0.75], "posterior": [0.1, 0.9], "loss": [1e30, 0.0]}[rule]
    check_answers((ScoreAnswer(3, torch.tensor(fine)),), (Score(torch.zeros(2, 4), rule),), 4)


def test_sums_by_class_are_of_all_samples_and_of_all_classes() -> None:
    task = Score(torch.zeros(2, 4), "classes", class_shares=torch.ones(2, 2))
    check_answers((ScoreAnswer(3, torch.tensor([1.0, 0.5, 1.0, 0.5])),), (task,), 4)
    for wrong in ([1.0, 0.5, 1.0, 0.6], [4.0, 0.0, -1.0, 0.0], [1.0, 2.0], [1.0, 0.5, 1.0, torch.nan]):
        with raises("wire-not-finite" if torch.nan in wrong else "wire-answer-invalid", match="scores"):
            check_answers((ScoreAnswer(3, torch.tensor(wrong)),), (task,), 4)
