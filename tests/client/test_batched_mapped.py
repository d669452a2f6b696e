"""Many clients as one computation by vmap: what one client after another gives, or not at all. Here on the CPU, where
engines do not use it; on the pretend accelerator see tests/devices and tests/conformance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.client.batched.mapped import MappedTraining
from coterie.client.batched.visits import BatchedTaskRunner
from coterie.client.training import LocalTraining, Proximal, train
from coterie.core.allocation import BufferPool
from coterie.core.model import Model
from coterie.core.tasks import Local
from coterie.zoo import MLP

SIZES = (9, 3, 14, 4)  # samples of four clients: batches of 4 have rests of 1, 3, 2 and none


def images(outputs: int = 3) -> nn.Module:
    """Two convolutions with 6 x 6 images of two channels, whose weights lie with channels last in the vector."""
    return nn.Sequential(
        *(nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(4, outputs)),
    )


class Residual(nn.Module):
    """Not layers in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 1), nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head((x + self.two(self.one(x).relu())).flatten(1))
        return found


def above_median(outputs: Tensor, y: Tensor) -> Tensor:
    """An objective of one's own, with what vmap could not do: a choice by values."""
    away = (outputs[:, 0] - y.float()).abs()
    return away if away.sum() > 1e9 else away.square()


MODELS = {
    "images": Model(images),
    "residual": Model(Residual),
    "regression": Model(partial(images, 2), "mse"),
    "own loss": Model(images, above_median),  # type: ignore[arg-type]
    "head": Model(images, train="head"),
}
LOCALS = {
    "epochs": Local(epochs=3, batch=4, lr=0.1),
    "full": Local(steps=5, batch="full", lr=0.1),
    "momentum": Local(steps=7, batch=4, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": Local(epochs=2, batch=4, lr=0.01, optimizer="adam"),
    "clip": Local(epochs=3, batch=4, lr=0.1, clip=0.3),
}


def works(model: Model, local: Local, mu: float, extras: bool, only: Tensor | None = None) -> list[LocalTraining]:
    """Four clients with different data, starts, anchors and pulls; with frozen logits and sample weights if asked."""
    draw = torch.Generator().manual_seed(1)
    outputs = 2 if model.loss == "mse" else 3
    made = []
    for client, n in enumerate(SIZES):
        x = torch.randn(n, 2, 6, 6, generator=draw)
        y = torch.randn(n, 2, generator=draw) if model.loss == "mse" else torch.randint(3, (n,), generator=draw)
        anchor = torch.randn(model.size, generator=draw)
        offset, weights = torch.randn(n, outputs, generator=draw), torch.rand(n, generator=draw)
        made.append(
            LocalTraining(
                model.init(np.random.default_rng(client)),
                *(x, y, local, np.random.default_rng(client)),
                lr=local.rate,
                proximal=Proximal(anchor, mu * (client + 1)) if mu else None,
                offset=offset if extras else None,
                weights=weights if extras else None,
                state=None,
                clip=None if local.clip in ("auto", "off") else float(local.clip),
                only=only,
            )
        )
    return made


def same(name: str, how: str, mu: float = 0.0, extras: bool = False, only: Tensor | None = None) -> None:
    """Whether training together gives what one client after another gives."""
    model, local = MODELS[name], LOCALS[how]
    mapped = MappedTraining(model.replica(), BufferPool())
    made = works(model, local, mu, extras, only)
    assert mapped.fits(made[0].x)
    replica = model.replica()
    for work, mine in zip(works(model, local, mu, extras, only), mapped.train(made), strict=True):
        loss, state = train(
            *(replica.load(work.start), work.x, work.y, work.local, work.rng),
            lr=work.lr,
            proximal=work.proximal,
            offset=work.offset,
            weights=work.weights,
            clip=work.clip,
            only=only,
        )
        torch.testing.assert_close(mine.theta, replica.theta, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.state, state, rtol=1e-3, atol=1e-5)
        assert mine.loss == pytest.approx(loss, rel=1e-4)
        assert not torch.equal(mine.theta, work.start)


@pytest.mark.parametrize("how", LOCALS)
def test_together_is_one_by_one(how: str) -> None:
    same("images", how)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "images"])
def test_other_networks_and_losses_too(name: str) -> None:
    same(name, "epochs")


@pytest.mark.parametrize("mu", [0.5, 5.0], ids=["pulled", "pulled hard by some"])
def test_with_anchors_frozen_logits_and_weights(mu: float) -> None:
    same("images", "momentum", mu, extras=True)


def test_a_part_alone() -> None:
    only = MODELS["images"].section("head")
    same("images", "momentum", 0.5, only=only)


# ------------------------------------------------------------------------------------------------- which it is not for


class Mixing(nn.Module):
    """A sample's output depends on the batch, which is filled up."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x.flatten(1) - x.flatten(1).mean(0))
        return found


class Choosing(Residual):
    """A choice by values, which vmap refuses."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        return found if found.sum() > 0 else -found


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 3)),
    "BatchNorm without statistics": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(48, 3)
    ),
    "dropout": lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 3), nn.Dropout(0.5)),
    "mixed samples": Mixing,
    "choices": Choosing,
}


@pytest.mark.parametrize("name", REFUSED)
def test_networks_that_it_would_train_otherwise_are_refused(name: str) -> None:
    assert not MappedTraining(Model(REFUSED[name]).replica(), BufferPool()).fits(torch.randn(5, 2, 6, 6))
    assert MappedTraining(Model(Residual).replica(), BufferPool()).fits(torch.randn(5, 2, 6, 6))


def test_the_trial_leaves_random_numbers_and_the_network_alone() -> None:
    replica = Model(REFUSED["dropout"]).replica().load(torch.ones(219))
    before = torch.get_rng_state()
    MappedTraining(replica, BufferPool()).fits(torch.randn(5, 2, 6, 6, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)
    assert bool((replica.theta == 1).all())


def test_a_processor_trains_one_by_one() -> None:
    assert BatchedTaskRunner(Model(images)).mapped is None


def test_dense_networks_have_their_own_way() -> None:
    model: Any = Model(partial(MLP(hidden=(7,)), (8,), 3))
    assert BatchedTaskRunner(model).mapped is None
