"""Many clients as one computation: the same numbers as one client after another gives, whatever training may need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import raises
from coterie.client.batched import dense
from coterie.client.batched.dense import layers_of, train_together, trains_low_rank
from coterie.client.training import LocalTraining, Proximal, batches, steps_of, train
from coterie.core.model import Model
from coterie.core.objective import Loss
from coterie.core.tasks import Local
from coterie.zoo import CNN, MLP, LinearModel

SIZES = (9, 3, 14, 4)  # samples of four clients: batches of 4 have rests of 1, 3, 2 and none
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Loss]] = {
    "linear": (partial(LinearModel(), (8,), 3), "cross_entropy"),
    "no bias": (partial(LinearModel(bias=False), (8,), 3), "cross_entropy"),
    "two hidden layers": (partial(MLP(hidden=(7, 5)), (2, 4), 3), "cross_entropy"),
    "regression": (partial(MLP(hidden=(7,)), (8,), 2), "mse"),
}
LOCALS = {
    "epochs": Local(epochs=3, batch=4, lr=0.1),
    "full": Local(steps=5, batch="full", lr=0.1),
    "steps": Local(steps=7, batch=4, lr=0.1, shuffle=False),
    "momentum": Local(steps=7, batch=4, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": Local(epochs=2, batch=4, lr=0.01, optimizer="adam"),
    "clip": Local(epochs=3, batch=4, lr=0.1, clip=0.3),
}


def works(model: Model, local: Local, mu: float, extras: bool) -> list[LocalTraining]:
    """Four clients with different data, starts, anchors and pulls; with frozen logits and sample weights if asked."""
    draw = torch.Generator().manual_seed(1)
    made = []
    for client, n in enumerate(SIZES):
        x = torch.randn(n, 8, generator=draw)
        regression = model.loss == "mse"
        y = torch.randn(n, 2, generator=draw) if regression else torch.randint(3, (n,), generator=draw)
        anchor = torch.randn(model.size, generator=draw)
        offset, weights = torch.randn(n, 2 if regression else 3, generator=draw), torch.rand(n, generator=draw)
        made.append(
            LocalTraining(
                model.init(np.random.default_rng(client)),
                *(x, y, local, np.random.default_rng(client)),
                lr=local.rate,
                proximal=Proximal(anchor, mu * (client + 1)) if mu else None,
                offset=offset if extras else None,
                weights=weights if extras else None,
                state=None,
            )
        )
    return made


@pytest.mark.covering
@pytest.mark.parametrize("extras", [False, True], ids=["", "logits and weights"])
@pytest.mark.parametrize("mu", [0.0, 0.5, 5.0], ids=["free", "pulled", "pulled hard by some"])
@pytest.mark.parametrize("how", LOCALS)
@pytest.mark.parametrize("network", NETWORKS)
def test_together_is_one_by_one(network: str, how: str, mu: float, extras: bool) -> None:
    """With mu = 5 and lr = 0.1 the pulls are 5, 10, 15, 20: the last two are beyond 1/lr and so implicit."""
    _same_as_one_by_one(Model(*NETWORKS[network]), LOCALS[how], mu, extras)


@pytest.mark.covering
@pytest.mark.parametrize("extras", [False, True], ids=["", "logits and weights"])
@pytest.mark.parametrize("mu", [0.0, 0.5, 5.0], ids=["free", "pulled", "pulled hard by some"])
@pytest.mark.parametrize("how", ["epochs", "full", "steps", "larger than all"])
@pytest.mark.parametrize("network", NETWORKS)
def test_in_the_span_of_the_samples_too(
    network: str, how: str, mu: float, extras: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced, for these networks are too small for it to be worth it."""
    written: list[None] = []
    monkeypatch.setattr(dense, "MARGIN", 1e9)
    write_back = dense.LowRankTraining.write_back

    def counted(self: dense.LowRankTraining) -> None:
        written.append(None)
        write_back(self)

    monkeypatch.setattr(dense.LowRankTraining, "write_back", counted)
    local = Local(epochs=5, batch=50, lr=0.1) if how == "larger than all" else LOCALS[how]
    _same_as_one_by_one(Model(*NETWORKS[network]), local, mu, extras)
    assert len(written) == 1


@pytest.mark.parametrize("how", ["momentum", "adam"])
def test_momentum_decay_and_adam_leave_the_span(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "MARGIN", 1e9)
    model = Model(*NETWORKS["two hidden layers"])
    layers = layers_of(model)
    assert layers is not None
    assert trains_low_rank(works(model, LOCALS["epochs"], 0, False)[0], layers[0])
    assert not trains_low_rank(works(model, LOCALS[how], 0, False)[0], layers[0])


def test_the_span_is_worth_it_for_few_samples_seen_often() -> None:
    """50 samples, 784 inputs, 5 full steps: 2 * 50 * 784 + 5 * 50 * 50 products per output against 5 * 2 * 50 * 784."""
    assert dense.saves_time(50, 250, 784, 2048, anchored=False)
    assert dense.saves_time(50, 250, 784, 2048, anchored=True)
    assert not dense.saves_time(50, 50, 784, 2048, anchored=False)  # one epoch: nothing is used twice
    assert not dense.saves_time(3000, 15000, 784, 2048, anchored=False)  # more samples than inputs
    assert not dense.saves_time(50, 250, 784, 1, anchored=False)  # the products of the samples alone cost as much


def _same_as_one_by_one(model: Model, local: Local, mu: float, extras: bool) -> None:
    layers = layers_of(model)
    assert layers is not None
    found = train_together(layers, model.loss, works(model, local, mu, extras))
    for work, mine in zip(works(model, local, mu, extras), found, strict=True):
        replica = model.replica().load(work.start)
        loss, state = train(
            *(replica, work.x, work.y, work.local, work.rng),
            lr=work.lr,
            proximal=work.proximal,
            offset=work.offset,
            weights=work.weights,
        )
        # A hard pull with so large a step swings: rounding grows with what it rounds.
        torch.testing.assert_close(mine.theta, replica.theta, rtol=1e-5 if mu < 5 else 5e-4, atol=2e-6)
        torch.testing.assert_close(mine.state, state, rtol=1e-4 if mu < 5 else 5e-4, atol=1e-5)
        assert mine.loss == pytest.approx(loss, rel=1e-4)


def test_one_step_by_hand() -> None:
    """x = 2, y = 10, w = 1, b = 0: the slope of (w x + b - y)^2 is 2 (2 - 10) = -16: w += 0.1 * 32, b += 0.1 * 16."""
    model = Model(partial(nn.Linear, 1, 1), "mse")
    layers = layers_of(model)
    assert layers is not None
    x, y, local = torch.tensor([[2.0]]), torch.tensor([[10.0]]), Local(steps=1, lr=0.1)
    work = LocalTraining(torch.tensor([1.0, 0.0]), x, y, local, np.random.default_rng(0), 0.1, None, None, None, None)
    (done,) = train_together(layers, "mse", [work])
    assert done.theta.tolist() == pytest.approx([4.2, 1.6])
    assert done.loss == pytest.approx(64.0)


def test_a_kept_state_goes_on_and_a_wrong_one_is_refused() -> None:
    model, local = Model(*NETWORKS["linear"]), LOCALS["momentum"]
    layers = layers_of(model)
    assert layers is not None
    first = train_together(layers, model.loss, works(model, local, 0, False))
    again = [
        LocalTraining(t.theta, w.x, w.y, local, w.rng, w.lr, None, None, None, t.state)
        for w, t in zip(works(model, local, 0, False), first, strict=True)
    ]
    second = train_together(layers, model.loss, again)
    for work, before, after in zip(works(model, local, 0, False), first, second, strict=True):
        replica = model.replica().load(before.theta)
        train(replica, work.x, work.y, local, work.rng, state=before.state)
        torch.testing.assert_close(after.theta, replica.theta, rtol=1e-5, atol=2e-6)
    bad = LocalTraining(
        again[0].start, again[0].x, again[0].y, local, again[0].rng, 0.1, None, None, None, torch.zeros(3)
    )
    with raises("checkpoint-mismatch"):
        train_together(layers, model.loss, [bad])


def test_results_may_be_changed_in_place_later() -> None:
    model, local = Model(*NETWORKS["linear"]), LOCALS["epochs"]
    layers = layers_of(model)
    assert layers is not None
    done = train_together(layers, model.loss, works(model, local, 0, False))[0]
    done.theta.add_(1.0).requires_grad_()


class Own(nn.Module):
    """A network that might do anything between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Not the layer alone."""
        out: Tensor = self.layer(x).sin()
        return out


def hooked() -> nn.Module:
    """A network somebody listens to."""
    network = nn.Sequential(nn.Linear(4, 2))
    network.register_forward_hook(lambda *_: None)
    return network


def frozen() -> nn.Module:
    """A first layer that is not trained."""
    return nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.ReLU(), nn.Linear(3, 2))


@pytest.mark.parametrize(
    "build",
    [
        partial(CNN(), (1, 8, 8), 3),
        partial(nn.Sequential, nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)),
        partial(nn.Sequential, nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2)),
        partial(nn.Sequential, nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        partial(nn.Sequential, nn.Linear(4, 3), nn.ReLU()),
        *(Own, hooked, frozen),
    ],
    ids=["cnn", "batchnorm", "dropout", "tanh", "relu at the end", "own forward", "hooked", "frozen"],
)
def test_what_is_more_than_linear_layers_is_left_to_the_loop(build: Callable[[], nn.Module]) -> None:
    assert layers_of(Model(build)) is None


@pytest.mark.parametrize("how", LOCALS)
@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 9])
def test_steps_are_counted_as_they_are_taken(n: int, how: str) -> None:
    assert steps_of(n, LOCALS[how]) == len(list(batches(n, LOCALS[how], np.random.default_rng(0))))
