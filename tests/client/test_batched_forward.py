"""Models side by side say what each of them says; networks that are more than known layers in a row are left alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.client.batched import forward
from coterie.client.batched.forward import stack_models
from coterie.core.model import Model
from coterie.zoo import CNN, CNN1D, MLP, LeNet, LinearModel

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (partial(LinearModel(), (2, 4), 3), (2, 4)),
    "no bias": (partial(LinearModel(bias=False), (8,), 3), (8,)),
    "vectors without a flattening": (partial(nn.Sequential, nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)), (8,)),
    "two hidden layers": (partial(MLP(hidden=(7, 5)), (2, 4), 3), (2, 4)),
    "lenet": (partial(LeNet(), (3, 20, 18), 10), (3, 20, 18)),
    "signals": (partial(CNN1D(channels=(4, 6), hidden=8), (3, 16), 5), (3, 16)),
    "strides and paddings": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 5, 3, stride=2, padding=1, bias=False), nn.Identity(), nn.ReLU()),
            *(nn.Conv2d(5, 4, (3, 1), dilation=(2, 1)), nn.MaxPool2d(2, 1), nn.Dropout(0.5)),
            *(nn.Flatten(), nn.Linear(4 * 10, 3)),
        ),
        (2, 13, 11),
    ),
    "in a sequence of sequences": (
        lambda: nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), nn.Flatten(), nn.Linear(2 * 9, 2)),
        (1, 5, 5),
    ),
}


@pytest.mark.covering
@pytest.mark.parametrize("many", [1, 2, 5])
@pytest.mark.parametrize("name", NETWORKS)
def test_side_by_side_is_one_by_one(name: str, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "IMAGES", 4)
    monkeypatch.setattr(forward, "SAMPLES", 4)
    build, shape = NETWORKS[name]
    model = Model(build)
    side = stack_models(model)
    assert side is not None
    thetas = torch.stack([model.init(np.random.default_rng(seed)) for seed in range(many)])
    x = torch.randn(11, *shape, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    said = side.logits(thetas, x)
    assert torch.equal(x, before)
    replica = model.replica()
    for theta, mine in zip(thetas, said, strict=True):
        torch.testing.assert_close(mine, replica.load(theta).logits(x), rtol=1e-5, atol=1e-6)


def test_two_models_by_hand() -> None:
    """Filters of one pixel, 2 and -3, leave (2, 0) and (0, 3) of (1, -1); then 2 + 0.5 and 10 * 3."""
    model = Model(lambda: nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(2, 1)))
    side = stack_models(model)
    assert side is not None
    thetas = torch.tensor([[2.0, 1.0, 1.0, 0.5], [-3.0, 1.0, 10.0, 0.0]])
    assert side.logits(thetas, torch.tensor([[[[1.0, -1.0]]]])).tolist() == [[[2.5]], [[30.0]]]


class Own(nn.Linear):
    """A layer that is more than its kind."""

    def forward(self, x: Tensor) -> Tensor:
        """Not the layer alone."""
        return super().forward(x).sin()


def hooked() -> nn.Module:
    """A network with a layer that somebody listens to."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    network[1].register_forward_hook(lambda *_: None)
    return network


def frozen() -> nn.Module:
    """A first layer that is not trained lies elsewhere in the vector."""
    return nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.ReLU(), nn.Linear(3, 2))


def twice() -> nn.Module:
    """A layer in two places has its numbers once."""
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    "build",
    [
        partial(CNN(), (1, 8, 8), 3),
        partial(nn.Sequential, nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(36, 2)),
        partial(nn.Sequential, nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(36, 2)),
        partial(nn.Sequential, nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)),
        partial(nn.Sequential, nn.MaxPool2d(2), nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(36, 2)),
        partial(nn.Sequential, nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        partial(nn.Sequential, nn.Conv2d(2, 4, 3)),
        *(partial(Own, 4, 2), hooked, frozen, twice),
    ],
    ids=[
        *("batchnorm", "groups", "circular", "relu of the samples", "pool of the samples", "tanh", "no classifier"),
        *("own forward", "hooked", "frozen", "twice"),
    ],
)
def test_any_other_network_is_left_alone(build: Callable[[], nn.Module]) -> None:
    assert stack_models(Model(build)) is None


def test_a_linear_layer_wants_vectors() -> None:
    """Of samples (2, 8) it would make something else than of two models' vectors."""
    side = stack_models(Model(NETWORKS["vectors without a flattening"][0]))
    assert side is not None
    with pytest.raises(ValueError, match="expected vectors"):
        side.logits(torch.zeros(2, 63), torch.zeros(3, 2, 8))
