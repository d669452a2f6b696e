"""Methods that must coincide, do; a method that must stay put, stays; hidden clusters that can be found, are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie import IFCA, FedAvg, Federation, FedProx, FeSEM, Local, WeCFL
from coterie.core.seeds import Purpose, generator
from coterie.methods.contract import Method
from coterie.training.build import build_data, build_method
from coterie.training.config import read
from papers.methods.wecfl import WeCFLAuthors

LOCAL = Local(epochs=2, batch=8, lr=0.1)


def network() -> nn.Module:
    """A real model: convolutions, running statistics, two linear layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)),
    )


def digits(sizes: tuple[int, ...]) -> Federation:
    """Handwritten digits; client i holds sizes[i] of them."""
    whole = build_data(read(None, ["data.partition.name=iid", "data.partition.clients=1", "data.partition.test=0"]))
    x, y = whole.samples(0, "train")
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return Federation.from_arrays([(x[p], y[p]) for p in parts], outputs=10, standardise=False)


UNEQUAL = (20, 95, 40, 140, 30, 61)
EQUAL = (50,) * 6


def final(method: Method[Any], federation: Federation, rounds: int = 5) -> Any:
    return coterie.run(method, federation, model=network, rounds=rounds, seed=2, evaluate_every=rounds).state


def start(federation: Federation) -> Tensor:
    return FedAvg().init(coterie.Model(network), federation.roster, generator(2, Purpose.INIT))


def test_fedprox_with_a_huge_mu_stays_where_it_starts() -> None:
    federation = digits(UNEQUAL)
    begin, trainable = start(federation), coterie.Model(network).parameters
    held = final(FedProx(local=LOCAL, mu=1e6), federation, rounds=2)
    free = final(FedProx(local=LOCAL, mu=0), federation, rounds=2)
    assert float((held - begin)[:trainable].norm()) < 1e-4
    assert float((free - begin)[:trainable].norm()) > 0.5


def test_fedprox_is_pulled_the_harder_the_larger_mu_is() -> None:
    federation = digits(UNEQUAL)
    begin, trainable = start(federation), coterie.Model(network).parameters
    ways = [final(FedProx(local=LOCAL, mu=mu), federation, rounds=1) for mu in (0, 0.1, 1, 9, 11, 100, 1e4)]
    far = [float((way - begin)[:trainable].norm()) for way in ways]
    assert far == sorted(far, reverse=True)
    assert len(set(far)) == len(far)


def test_fedprox_without_mu_is_fedavg_bit_for_bit() -> None:
    federation = digits(UNEQUAL)
    assert torch.equal(final(FedProx(local=LOCAL, mu=0), federation), final(FedAvg(local=LOCAL), federation))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "method",
    [
        IFCA(k=1, local=LOCAL),
        WeCFL(k=1, local=LOCAL),
        WeCFLAuthors(k=1, local=LOCAL),
        FeSEM(k=1, local=LOCAL, weights="size"),
    ],
    ids=["ifca", "wecfl", "wecfl-authors", "fesem"],
)
def test_one_cluster_is_fedavg(method: Method[Any]) -> None:
    federation = digits(UNEQUAL)
    state = final(method, federation)
    (center,) = state if isinstance(state, Tensor) else state.centers
    expected = final(FedAvg(local=LOCAL), federation)
    torch.testing.assert_close(center, expected, rtol=0, atol=1e-6)
    unweighted = final(FedAvg(local=LOCAL, weights="equal"), federation)
    assert float((unweighted - expected).abs().max()) > 1e-3, "the sizes make no difference here"


def test_wecfl_with_equal_sizes_is_fesem() -> None:
    federation = digits(EQUAL)
    assert len(set(federation.roster.n.tolist())) == 1
    one = final(WeCFL(k=2, local=LOCAL, features="all"), federation)
    other = final(FeSEM(k=2, local=LOCAL), federation)
    assert torch.equal(one.labels.values, other.labels.values)
    assert len(one.labels.values.unique()) == 2
    torch.testing.assert_close(one.centers, other.centers, rtol=0, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["wecfl", "fesem", "ifca", "clove"])
def test_the_four_rotations_are_found(name: str) -> None:
    config = read(None, [f"method.name={name}", "seed=1"])
    result = coterie.run(build_method(config), build_data(config), model="linear", rounds=30, seed=1, evaluate_every=30)
    assert (result.summary.ari, result.summary.sizes) == (1.0, (10, 10, 10, 10))
