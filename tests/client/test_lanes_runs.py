"""Whole runs with convolutional networks: the batched engine's compiled code against the sequential engine."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch

import coterie
from coterie.client.lanes.network import library
from coterie.client.visit import Networks
from coterie.core.tasks import Local
from coterie.data.federation import Federation
from coterie.zoo import CNN

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler here")

LOCAL = Local(epochs=1, batch=4, lr=0.02, momentum=0.9)


def images(clients: int = 6) -> Federation:
    """Clients of different numbers of images: a last batch of any size."""
    rng = np.random.default_rng(0)
    sizes = [9 + client for client in range(clients)]
    arrays = [(rng.normal(size=(n, 1, 9, 9)).astype(np.float32), rng.integers(0, 3, n)) for n in sizes]
    return Federation.from_arrays(arrays, outputs=3, standardise=False)


ENGINES: tuple[tuple[Literal["sequential", "batched"], int | None], ...] = (("sequential", None), ("batched", 1))


def network() -> Any:
    return CNN(channels=(3, 4))((1, 9, 9), 3)


@pytest.mark.parametrize(
    "method",
    [
        coterie.FedAvg(local=LOCAL),
        coterie.IFCA(k=2, local=LOCAL),
        coterie.FedProx(mu=0.1, local=LOCAL),
        coterie.Ditto(local=LOCAL),
        coterie.FedEM(k=2, local=LOCAL),
        coterie.StoCFL(local=LOCAL),
        coterie.FeSEMCAM(base=coterie.FeSEM(k=2), warmup=1, local=LOCAL),
    ],
    ids=lambda method: type(method).__name__,
)
def test_runs_agree_with_the_sequential_engine(method: Any) -> None:
    federation = images()
    plain, compiled = (
        coterie.run(method, federation, network, rounds=2, engine=engine, workers=workers)
        for engine, workers in ENGINES
    )
    assert torch.allclose(plain.clients.loss, compiled.clients.loss, rtol=1e-3)
    np.testing.assert_array_equal(plain.assignments, compiled.assignments)


def test_frozen_logits_of_a_training_are_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("by torch")

    monkeypatch.setattr(Networks, "by_network", refused)
    method = coterie.FeSEMCAM(base=coterie.FeSEM(k=2), warmup=1, local=LOCAL)
    coterie.run(method, images(), network, rounds=2, engine="batched", workers=1)  # stops where every client fails


def test_the_number_of_processes_changes_no_bits() -> None:
    federation = images()
    method = coterie.FedAvg(local=LOCAL)
    one, two = (
        coterie.run(method, federation, network, rounds=2, engine="batched", workers=workers) for workers in (1, 2)
    )
    assert torch.equal(one.state, two.state)
    assert torch.equal(one.clients.loss, two.clients.loss)
