"""A client of a real federation computes on its own device; the server cannot tell, but for rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_transport import transport_of

import sham
from coterie.core.compute import HOST, Compute
from coterie.network.config import read
from coterie.network.server import train_with_clients
from coterie.training.result import Result

if not sham.register():
    pytest.skip(f"this PyTorch has no {sham.SET_UP}, which was private to it", allow_module_level=True)


def trained(folder: Path, compute: Compute) -> Result[Any]:
    rng = np.random.default_rng(0)
    drawn = [(rng.normal(size=(12, 2)).astype(np.float32), rng.integers(3, size=12)) for _ in range(3)]
    clients = [(x[:9], y[:9], x[9:], y[9:]) for x, y in drawn]
    transport = transport_of(clients, folder / "clients")
    for node, worker in transport.workers.items():
        transport.workers[node] = replace(worker, compute=compute if node == 101 else HOST)
    words = ["method=ditto", "rounds=2", "network.clients=3", "local.steps=2", "network.outputs=3"]
    return train_with_clients(transport, read(None, words), folder / "run")


def test_a_client_computes_on_its_own_device(tmp_path: Path) -> None:
    here = trained(tmp_path / "here", HOST)
    sham.COUNTS.reset()
    there = trained(tmp_path / "there", Compute("sham:0"))
    assert sham.COUNTS.down
    assert not any(event.missing or event.unscored for event in there.history)
    torch.testing.assert_close(there.state, here.state, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(there.clients.loss, here.clients.loss, rtol=1e-5, atol=1e-5)
