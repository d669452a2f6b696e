"""SIGTERM to a server: the round is finished and saved, clients that are not there are not waited for."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from local_transport import LocalTransport, groups, transport_of

import coterie
from coterie.core.codec import pack
from coterie.core.processes import Terminated, exit_code, interruptible
from coterie.network import engine as engine_module
from coterie.network.config import read
from coterie.network.server import train_with_clients
from coterie.network.wire import Payload
from coterie.training.run_directory import read_history

CLIENTS = 3
WORDS = ("rounds=4", "method=fedavg", f"network.clients={CLIENTS}", "local.epochs=1", "checkpoint_every=3")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "POLL", (0.001, 0.01))


def serve(transport: LocalTransport, path: Path, **more: Any) -> coterie.Result[Any]:
    return train_with_clients(transport, read(None, WORDS), path, **more)


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def stopped(transport: LocalTransport, path: Path) -> list[str]:
    """Serve until SIGTERM ends it; what was told of it."""
    told: list[str] = []
    with interruptible(lambda: told.append("stopping")) as interruption, pytest.raises(Terminated) as why:
        serve(transport, path, interruption=interruption)
    assert exit_code(why.value) == 143
    return told


def saved(path: Path) -> list[str]:
    return sorted(file.name for file in path.rglob("round-*.safetensors"))


def test_the_round_is_finished_and_saved_and_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    whole = serve(transport_of(groups(CLIENTS), tmp_path / "other"), tmp_path / "whole")
    transport, run = transport_of(groups(CLIENTS), tmp_path / "state"), tmp_path / "run"

    def in_the_second_round(_: int, payload: Payload) -> Payload:
        if len(read_history(run, 4)) == 1 and transport.bend is in_the_second_round:
            transport.bend = lambda _, payload: payload
            sigterm()
        return payload

    transport.bend = in_the_second_round
    assert stopped(transport, run) == ["stopping"]
    assert [event.round for event in read_history(run, 4)] == [1, 2]
    assert saved(run) == ["round-000002.safetensors"]
    again = serve(transport, run, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(pack(again.state)[1], pack(whole.state)[1], strict=True))


def test_clients_that_have_left_are_not_waited_for(tmp_path: Path) -> None:
    transport, run = transport_of(groups(CLIENTS), tmp_path / "state"), tmp_path / "run"
    looks: list[int] = []

    def before() -> None:
        if len(read_history(run, 4)) == 2:
            transport.workers.clear()
            looks.append(1)
            if len(looks) == 3:  # it waits by now
                sigterm()

    transport.before = before
    assert stopped(transport, run) == ["stopping"]
    assert len(looks) == 3
    assert saved(run) == ["round-000002.safetensors"]  # though a checkpoint was not due
