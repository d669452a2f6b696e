"""Compiled training of small convolutional networks against the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.client.batched.visits import BatchedTaskRunner
from coterie.client.contract import ClientTasks, Moment
from coterie.client.lanes.network import LanesNetwork, LanesNetworks, library
from coterie.client.training import LocalTraining, Proximal, train
from coterie.client.visit import TaskRunner
from coterie.core.model import Model
from coterie.core.tasks import All, Fit, Local
from coterie.data.federation import Federation
from coterie.zoo import CNN, CNN1D, LeNet

compiled = pytest.mark.skipif(library() is None, reason="no C++ compiler here")

IMAGE, SIGNAL = (2, 17, 18), (3, 20)


def _odd() -> nn.Module:
    """Sizes that nothing divides: filters beyond a tile, a pooling that leaves rows over, no bias, padding."""
    return nn.Sequential(
        *(nn.Conv2d(2, 7, (3, 5), padding=(1, 2), bias=False), nn.ReLU(), nn.MaxPool2d((2, 3))),
        *(nn.Conv2d(7, 5, 2), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(3), nn.Identity()),
        *(nn.Flatten(), nn.Linear(10, 19, bias=False), nn.ReLU(), nn.Linear(19, 4)),
    )


def _bare() -> nn.Module:
    """Convolutions on convolutions, and straight into a linear layer."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(2, 3, 4), nn.Conv2d(3, 9, 3, padding="same")), nn.Flatten(), nn.Linear(9 * 14 * 15, 4)
    )


def _wide_kernels() -> nn.Module:
    """A kernel of an even width that looks beyond the image, then one too wide to take fewer multiplications."""
    return nn.Sequential(
        *(nn.Conv2d(2, 6, (2, 6), padding=(1, 3)), nn.ReLU(), nn.Conv2d(6, 2, (1, 9), padding=(0, 4))),
        *(nn.Flatten(), nn.Linear(2 * 18 * 19, 4)),
    )


def _late_norm() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 7), nn.MaxPool2d(2), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1), nn.ReLU(), nn.BatchNorm2d(2)),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * 2 * 3, 4)),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lenet": (lambda: LeNet()(IMAGE, 4), IMAGE),
    "cnn": (lambda: CNN(channels=(5, 6))(IMAGE, 4), IMAGE),
    "cnn1d": (lambda: CNN1D(channels=(4, 6), kernel=3, hidden=9)(SIGNAL, 4), SIGNAL),
    "odd": (_odd, IMAGE),
    "bare": (_bare, IMAGE),
    "late-norm": (_late_norm, IMAGE),
    "wide-kernels": (_wide_kernels, IMAGE),
}


def _training(model: Model, shape: tuple[int, ...], local: Local, n: int = 23, **settings: Any) -> LocalTraining:
    rng = torch.Generator().manual_seed(n)
    x = torch.randn(n, *shape, generator=rng)
    x[:, :, :5] = 0  # equal values in a window: the first of them is the largest
    y: Tensor = torch.randint(0, 4, (n,), generator=rng)
    if model.loss == "mse":
        y = torch.randn(n, 4, generator=rng)
    plain = {"lr": local.rate, "proximal": None, "offset": None, "weights": None, "state": None}
    start = model.init(np.random.default_rng(0))
    return LocalTraining(start, x, y, local, np.random.default_rng(1), **{**plain, **settings})


def _network(model: Model, training: LocalTraining) -> LanesNetwork:
    network = LanesNetworks(model).for_training(training)
    assert network is not None
    return network


def _assert_same(model: Model, training: LocalTraining) -> None:
    replica = model.replica().load(training.start)
    least = replica.least_batch(training.x)
    found = _network(model, training).train(replace(training, rng=np.random.default_rng(1)), least)
    loss, state = train(
        replica,
        *(training.x, training.y, training.local, np.random.default_rng(1)),
        lr=training.lr,
        proximal=training.proximal,
        offset=training.offset,
        weights=training.weights,
        state=training.state,
        clip=training.clip,
    )
    assert not torch.equal(found.theta, training.start)
    torch.testing.assert_close(found.theta, replica.theta, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.state, state, rtol=1e-3, atol=1e-4)
    assert found.loss == pytest.approx(loss, rel=1e-4)


@compiled
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [10, 16, "full"])
def test_training_agrees_with_the_reference(name: str, batch: Any) -> None:
    build, shape = NETWORKS[name]
    model = Model.of(build)
    _assert_same(model, _training(model, shape, Local(lr=0.02, batch=batch, epochs=2)))


@compiled
@pytest.mark.parametrize("batch", [1, 7, 40])
def test_batches_of_any_size(batch: int) -> None:
    model = Model.of(NETWORKS["lenet"][0])
    _assert_same(model, _training(model, IMAGE, Local(lr=0.02, batch=batch, epochs=1), n=41))


@compiled
@pytest.mark.parametrize(
    ("local", "settings"),
    [
        (Local(lr=0.02, batch=8, momentum=0.9, weight_decay=0.01), {}),
        (Local(lr=0.001, batch=8, optimizer="adam"), {}),
        (Local(lr=0.02, batch=8), {"proximal": 0.5}),
        (Local(lr=0.5, batch=8), {"proximal": 4.0, "clip": 0.1}),
        (Local(lr=0.02, batch=8), {"offset": torch.randn(23, 4), "weights": torch.rand(23)}),
    ],
    ids=["momentum", "adam", "proximal", "implicit-clipped", "offset-weights"],
)
@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_all_that_methods_vary(local: Local, settings: dict[str, Any], loss: Any) -> None:
    # A bias before a BatchNorm has a gradient of nothing but rounding, which Adam makes as large as any other.
    build, shape = NETWORKS["lenet" if local.optimizer == "adam" else "cnn"]
    model = Model.of(build, loss)
    if "proximal" in settings:
        anchor = model.init(np.random.default_rng(7))
        settings = {**settings, "proximal": Proximal(anchor, settings["proximal"])}
    _assert_same(model, _training(model, shape, local, **settings))


@compiled
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_of_several_models(name: str) -> None:
    build, shape = NETWORKS[name]
    model = Model.of(build)
    training = _training(model, shape, Local(), n=50)
    thetas = torch.stack([model.init(np.random.default_rng(seed)) for seed in range(3)])
    thetas[:, model.parameters :] += 0.3  # statistics that are not the initial ones
    found = _network(model, training).outputs(thetas, training.x)
    replica = model.replica()
    expected = torch.stack([replica.load(theta).logits(training.x) for theta in thetas])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@compiled
def test_many_samples_and_any_strides() -> None:
    """More samples than are computed at a time, with what is read neither end to end nor in order."""
    model = Model.of(NETWORKS["lenet"][0])
    training = _training(model, IMAGE, Local(lr=0.02, batch=64), n=300)
    network = _network(model, training)
    thetas = torch.stack([model.init(np.random.default_rng(seed)) for seed in range(4)])
    expected, plain = network.outputs(thetas, training.x), network.train(training, 1).theta
    apart = training.x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
    assert not apart.is_contiguous()
    assert torch.equal(network.outputs(thetas.T.contiguous().T, apart), expected)
    for layout in (torch.contiguous_format, torch.channels_last):  # these are read many numbers at a time
        laid = training.x.contiguous(memory_format=layout)
        assert torch.equal(network.outputs(thetas, laid), expected)
    strided = replace(training, x=apart, y=training.y.repeat_interleave(2)[::2], rng=np.random.default_rng(1))
    assert torch.equal(network.train(strided, 1).theta, plain)
    assert network.outputs(thetas[:1], training.x[:0]).shape == (1, 0, 4)
    alone = torch.cat([network.outputs(thetas[g : g + 1], training.x[i : i + 1]) for g, i in ((0, 299), (3, 7))])
    torch.testing.assert_close(alone[:, 0], expected[[0, 3], [299, 7]])


@compiled
def test_a_number_that_is_none_stays_one() -> None:
    """Neither pooling nor ReLU hides it, so that a training that diverged is reported."""
    model = Model.of(NETWORKS["lenet"][0])
    training = _training(model, IMAGE, Local(batch=8))
    training.x[3, 0, 5, 5] = torch.nan
    assert not _network(model, training).train(training, 1).theta.isfinite().all()


@compiled
def test_what_the_compiled_code_must_not_read() -> None:
    model = Model.of(NETWORKS["lenet"][0])
    networks, training = LanesNetworks(model), _training(model, IMAGE, Local(batch=8))
    outside = training.y.clone()
    outside[0] = 4
    unreadable: tuple[dict[str, Any], ...] = (
        {"y": outside},
        {"y": training.y.int()},
        {"x": training.x.double()},
        {"start": training.start[1:]},
        {"offset": torch.zeros(23, 3)},
        {"weights": torch.ones(22)},
        {"x": training.x[:0], "y": training.y[:0]},
    )
    for wrong in unreadable:
        assert networks.for_training(replace(training, **wrong)) is None


@compiled
def test_models_of_another_size_are_refused() -> None:
    model = Model.of(NETWORKS["lenet"][0])
    training = _training(model, IMAGE, Local())
    with pytest.raises(ValueError, match=f"network of {model.size}"):
        _network(model, training).outputs(training.start[None, 1:], training.x)


@compiled
def test_a_lone_sample_without_a_variance_is_named_by_torch() -> None:
    """A BatchNorm that sees one value of a channel: the batched engine reports what the sequential one reports."""
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    model = Model.of(network)
    x, y = np.ones((1, 1, 3, 3), np.float32), np.zeros(1, np.int64)
    federation = Federation.from_arrays([(x, y, x, y)], outputs=2, standardise=False, standardise_y=False)
    call = ClientTasks(0, (Fit(All(model.init(np.random.default_rng(0))), Local(batch=1)),), {})
    for runner in (TaskRunner(model), BatchedTaskRunner(model)):
        (found,) = runner.visit_all([call], federation, Moment(0, 0, 0))
        assert "more than 1 value per channel" in str(found)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(2, 3, 3, stride=2), nn.Flatten(), nn.Linear(3 * 8 * 8, 4)],
        [nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(4 * 15 * 16, 4)],
        [nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 15 * 16, 4)],
        [nn.Conv2d(2, 3, 3), nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(3 * 7 * 7, 4)],
        [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, momentum=None), nn.Flatten(), nn.Linear(3 * 15 * 16, 4)],
        [nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Dropout(), nn.Linear(3 * 15 * 16, 4)],
        [nn.Flatten(), nn.Linear(2 * 17 * 18, 4)],
        [nn.Conv2d(2, 48, 3), nn.Conv2d(48, 48, 15), nn.Flatten(), nn.Linear(48 * 2, 4)],
    ],
    ids=["stride", "groups", "tanh", "overlapping", "cumulative", "dropout", "dense", "wide"],
)
def test_networks_with_other_layers_are_left_to_torch(layers: list[nn.Module]) -> None:
    assert LanesNetworks(Model.of(nn.Sequential(*layers))).of(IMAGE) is None
