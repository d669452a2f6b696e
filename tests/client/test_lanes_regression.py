"""Regression in compiled code: every answer is that of the reference, and what it does not know is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.client.batched.dense import layers_of
from coterie.client.lanes.network import Regression, library, regression_of
from coterie.client.training import LocalTraining, Proximal, train
from coterie.core.model import Model
from coterie.core.tasks import Local
from coterie.data.federation import Federation

pytestmark = pytest.mark.skipif(library("regression") is None, reason="no C++ compiler here")

N = 23


def _model(inputs: int = 37, outputs: int = 7, bias: bool = True, loss: Any = "cross_entropy") -> Model:
    return Model.of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias=bias)), loss=loss)


def _training(model: Model, local: Local, inputs: int = 37, outputs: int = 7, n: int = N) -> LocalTraining:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(n, inputs)).astype(np.float32))
    if model.loss == "mse":
        y = torch.from_numpy(rng.normal(size=(n, outputs)).astype(np.float32))
    else:
        y = torch.from_numpy(rng.integers(0, outputs, n))
    start, draws = model.init(rng), np.random.default_rng(1)
    return LocalTraining(start, x, y, local, draws, lr=local.rate, proximal=None, offset=None, weights=None, state=None)


def _regression(model: Model) -> Regression:
    found = regression_of(model, layers_of(model))
    assert found is not None
    return found


def _agrees(model: Model, training: LocalTraining) -> None:
    training, again = (replace(training, rng=np.random.default_rng(1)) for _ in range(2))
    regression = _regression(model)
    assert regression.reads(training)
    found = regression.train(training)
    replica = model.replica().load(training.start)
    vary: dict[str, Any] = {name: getattr(again, name) for name in ("lr", "proximal", "offset", "weights")}
    loss, state = train(replica, again.x, again.y, again.local, again.rng, **vary)
    assert not torch.equal(found.theta, training.start)
    torch.testing.assert_close(found.theta, replica.theta, rtol=1e-4, atol=1e-5)
    assert found.loss == pytest.approx(loss, rel=1e-4)
    assert found.state.shape == state.shape


@pytest.mark.parametrize(("inputs", "outputs"), [(37, 7), (32, 10), (5, 2), (64, 3), (784, 13)])
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("bias", [True, False])
def test_any_size(inputs: int, outputs: int, loss: str, bias: bool) -> None:
    model = _model(inputs, outputs, bias, loss)
    _agrees(model, _training(model, Local(epochs=2, batch=6, lr=0.05), inputs, outputs))


@pytest.mark.parametrize(
    "local",
    [
        Local(epochs=3, batch=1, lr=0.05),
        Local(epochs=2, batch=5, lr=0.05),
        Local(epochs=2, batch=16, lr=0.05),
        Local(epochs=3, batch="full", lr=0.05),
        Local(epochs=2, batch=100, lr=0.05),
        Local(steps=7, batch=6, lr=0.05),
        Local(steps=1, batch=6, lr=0.05),
        Local(steps=9, batch=6, lr=0.05, shuffle=False),
    ],
)
def test_batches_of_any_size(local: Local) -> None:
    model = _model()
    _agrees(model, _training(model, local))


@pytest.mark.parametrize("mu", [0.5, 40.0])  # a pull that is part of the gradient, and one that would overshoot
def test_all_that_methods_vary(mu: float) -> None:
    model = _model()
    plain = _training(model, Local(epochs=2, batch=6, lr=0.05))
    anchor, rng = model.init(np.random.default_rng(5)), torch.Generator().manual_seed(0)
    offset, weights = torch.randn(N, 7, generator=rng), torch.rand(N, generator=rng)
    _agrees(model, replace(plain, proximal=Proximal(anchor, mu)))
    _agrees(model, replace(plain, proximal=Proximal(anchor, mu), offset=offset, weights=weights, lr=0.03))
    _agrees(model, replace(plain, offset=offset.T.contiguous().T, x=plain.x.T.contiguous().T))
    images = _training(_model(inputs=48), plain.local, inputs=48)
    apart = images.x.reshape(N, 3, 4, 4).to(memory_format=torch.channels_last)
    _agrees(_model(inputs=48), replace(images, x=apart))


def test_a_number_that_is_none_stays_one() -> None:
    model = _model()
    training = _training(model, Local(epochs=1, batch=8, lr=0.05))
    training.x[3, 5] = torch.nan
    assert not _regression(model).train(training).theta.isfinite().all()


def test_what_it_must_not_read() -> None:
    model = _model()
    training, regression = _training(model, Local(epochs=1, batch=8, lr=0.05)), _regression(model)
    outside = training.y.clone()
    outside[0] = 7
    unreadable: tuple[dict[str, Any], ...] = (
        {"y": outside},
        {"x": training.x.double()},
        {"x": training.x[:, 1:]},
        {"start": training.start[1:]},
        {"offset": torch.zeros(N, 6)},
        {"weights": torch.zeros(N - 1)},
        {"local": Local(epochs=1, batch=8, lr=0.05, momentum=0.9)},
        {"local": Local(epochs=1, batch=8, lr=0.05, optimizer="adam")},
        {"local": Local(epochs=1, batch=8, lr=0.05, weight_decay=0.1)},
        {"clip": 1.0},
        {"only": torch.ones_like(training.start, dtype=torch.bool)},
    )
    assert regression.reads(training)
    for change in unreadable:
        assert not regression.reads(replace(training, **change)), change


def test_long_trainings_on_few_samples_take_fewer_multiplications_in_another_way() -> None:
    model = _model(inputs=800)
    short = _training(model, Local(epochs=2, batch=6, lr=0.05), inputs=800)
    assert _regression(model).reads(short)
    assert not _regression(model).reads(replace(short, local=Local(epochs=500, batch=6, lr=0.05)))


def test_other_networks_are_left_alone() -> None:
    deep = Model.of(lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)))
    wide = _model(inputs=10_000)
    assert regression_of(deep, layers_of(deep)) is None
    assert regression_of(wide, layers_of(wide)) is None


def test_runs_agree_and_processes_change_no_bits() -> None:
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(9 + c, 20)).astype(np.float32), rng.integers(0, 3, 9 + c)) for c in range(6)]
    federation = Federation.from_arrays(arrays, outputs=3, standardise=False, standardise_y=False)
    method = coterie.FedProx(mu=0.1, local=Local(epochs=2, batch=4, lr=0.05))
    settings: Any = {"rounds": 2, "model": "linear"}
    plain = coterie.run(method, federation, **settings, engine="sequential")
    one, two = (coterie.run(method, federation, **settings, engine="batched", workers=n) for n in (1, 2))
    assert torch.allclose(plain.clients.loss, one.clients.loss, rtol=1e-4)
    assert torch.equal(one.state, two.state)
    assert not torch.equal(one.state, plain.state)  # other sums, in another order
