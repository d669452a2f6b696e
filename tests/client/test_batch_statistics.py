"""CNN(batch_statistics=32): test batches normalised by their own statistics, and never those of two clients at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import coterie
from coterie.core.model import Model
from coterie.data.federation import Federation
from coterie.zoo import CNN

CHANNELS = (2, 3)


def network(batch_statistics: int | None = 32) -> nn.Module:
    return CNN(channels=CHANNELS, batch_statistics=batch_statistics)((1, 8, 8), 3)


def images(clients: int, samples: int = 6) -> Federation:
    """Clients whose pixels differ much in mean and size, so that a common normalisation would show."""
    rng = np.random.default_rng(0)
    arrays = []
    for client in range(clients):
        x = (rng.normal(size=(samples, 1, 8, 8)) * (1 + client % 5) + 3 * (client % 7)).astype(np.float32)
        arrays.append((x, rng.integers(0, 3, samples)))
    return Federation.from_arrays(arrays, outputs=3, test=0.5, standardise=False)


def by_hand(model: Model, theta: Tensor, x: Tensor) -> Tensor:
    """The same weights with an ordinary BatchNorm in training mode, 32 samples at a time."""
    plain = Model(lambda: network(None)).replica().load(theta).network
    plain.train()
    with torch.no_grad():
        return torch.cat([plain(part) for part in x.split(32)])


def test_evaluation_is_training_mode_on_chunks_of_32() -> None:
    model = Model(network)
    theta = model.init(np.random.default_rng(0))
    x = torch.randn(75, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 3 + 1
    found = model.replica().load(theta).logits(x)
    assert torch.allclose(found, by_hand(model, theta, x), atol=1e-5)
    whole = Model(lambda: network(None)).replica().load(theta).logits(x)
    assert not torch.allclose(found, whole, atol=1e-2)  # running statistics, which are not what is asked for


def test_a_sample_depends_on_its_own_chunk_only() -> None:
    model = Model(network)
    theta = model.init(np.random.default_rng(0))
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    other = x.clone()
    other[40] += 100
    before, after = (model.replica().load(theta).logits(inputs) for inputs in (x, other))
    assert torch.equal(before[:32], after[:32])
    assert not torch.allclose(before[32:40], after[32:40])


def test_statistics_never_move_in_evaluation() -> None:
    model = Model(network)
    replica = model.replica().load(model.init(np.random.default_rng(0)))
    theta = replica.theta.clone()
    buffers = [b.clone() for b in replica.network.buffers()]
    replica.logits(torch.randn(50, 1, 8, 8) + 5)
    assert torch.equal(replica.theta, theta)
    assert all(torch.equal(a, b) for a, b in zip(buffers, replica.network.buffers(), strict=True))


def test_training_is_as_ever() -> None:
    """The same steps, running statistics and all, as with an ordinary BatchNorm."""
    federation = images(3)
    method = coterie.FedAvg(local=coterie.Local(epochs=2, batch=2, lr=0.05))
    found, plain = (
        coterie.run(method, federation, lambda: network(size), rounds=2, engine="sequential")  # noqa: B023
        for size in (32, None)
    )
    assert torch.equal(found.state, plain.state)
    assert not torch.equal(found.clients.loss, plain.clients.loss)


def test_without_it_nothing_mixes() -> None:
    assert not Model(lambda: network(None)).replica().mixes
    assert Model(network).replica().mixes
    model = Model(lambda: network(None))
    replica = model.replica().load(model.init(np.random.default_rng(0)))
    x = torch.randn(40, 1, 8, 8)
    assert torch.allclose(replica.logits(x)[:5], replica.logits(x[:5]), atol=1e-6)


def test_every_client_is_evaluated_on_its_own_statistics() -> None:
    federation = images(5)
    result = coterie.run(coterie.FedAvg(local=coterie.Local(lr=0.05)), federation, network, rounds=1)
    for client in range(5):
        x, y = federation.samples(client, "test")
        logits = by_hand(result.model, result.state, x)
        assert float(result.clients.loss[client]) == pytest.approx(float(functional.cross_entropy(logits, y)), rel=1e-4)
        right = float((logits.argmax(1) == y).double().mean())
        assert float(result.clients.accuracy[client]) == pytest.approx(right)


@pytest.mark.parametrize(
    "method",
    [
        *(coterie.Ditto(), coterie.FedEM(k=2)),
        *(
            pytest.param(method, marks=pytest.mark.exhaustive)
            for method in (coterie.FedAvg(), coterie.IFCA(k=2), coterie.WeCFL(k=2))
        ),
    ],
    ids=lambda m: type(m).__name__,
)
def test_clients_do_not_meet_in_the_batched_engine(method: Any) -> None:
    """Forty clients are dealt into sixteen hands, so that several are at hand at once."""
    federation = images(40)
    plain = coterie.run(method, federation, network, rounds=1)
    batched = coterie.run(method, federation, network, rounds=1, engine="batched", workers=1)
    assert torch.equal(plain.clients.accuracy, batched.clients.accuracy)
    assert torch.allclose(plain.clients.loss, batched.clients.loss, rtol=1e-4)
    np.testing.assert_array_equal(plain.assignments, batched.assignments)


@pytest.mark.parametrize("batch", [48, 100])
def test_chunks_are_as_large_as_was_asked(batch: int) -> None:
    model = Model(lambda: network(batch))
    theta = model.init(np.random.default_rng(0))
    x = torch.randn(110, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 3 + 1
    plain = Model(lambda: network(None)).replica().load(theta).network
    plain.train()
    with torch.no_grad():
        wanted = torch.cat([plain(part) for part in x.split(batch)])
    assert torch.allclose(model.replica().load(theta).logits(x), wanted, atol=1e-5)
