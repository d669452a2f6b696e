"""The local step: against torch.optim, and by hand on a model of one number."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from conftest import Data, column, linear, raises, vector
from coterie.client.contract import FitAnswer, Moment
from coterie.client.training import Proximal, batches, train
from coterie.client.visit import TaskRunner
from coterie.core.model import Model, flatten
from coterie.core.tasks import All, Fit, Local
from coterie.zoo import MLP


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


SMALL = Model(partial(MLP(hidden=(4,)), (3,), 3))
ONE = linear(1, 1, loss="mse")  # f(x) = w x
X = torch.randn(10, 3, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])


def train_one(
    local: Local,
    start: float = 1.0,
    x: tuple[float, ...] = (1.0,),
    y: tuple[float, ...] = (0.0,),
    proximal: tuple[float, float] | None = None,
    weights: Tensor | None = None,
) -> tuple[float, float]:
    """Train f(x) = w x with squared error; by default the loss is w^2, its gradient 2 w. Returns w and the loss."""
    replica = ONE.replica().load(vector(start))
    near = None if proximal is None else Proximal(vector(proximal[0]), proximal[1])
    loss, _ = train(replica, vector(*x)[:, None], vector(*y), local, rng(), proximal=near, weights=weights)
    return float(replica.theta), loss


# --------------------------------------------------------------------------------- against torch.optim


@pytest.mark.parametrize(
    "local",
    [
        Local(epochs=3, batch=4, lr=0.3),
        Local(epochs=3, batch=4, lr=0.1, momentum=0.9),
        Local(epochs=3, batch=4, lr=0.3, weight_decay=0.1),
        Local(steps=7, batch=4, lr=0.1, momentum=0.5, weight_decay=0.05),
        Local(epochs=3, batch=4, lr=0.01, optimizer="adam"),
        Local(epochs=3, batch=4, lr=0.01, optimizer="adam", weight_decay=0.1),
    ],
    ids=["plain", "momentum", "decay", "momentum-decay", "adam", "adam-decay"],
)
def test_training_is_torchs(local: Local) -> None:
    theta = SMALL.init(rng())
    replica = SMALL.replica().load(theta)
    loss, _ = train(replica, X, Y, local, rng(5))

    network = SMALL.replica().load(theta).network
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer
    if local.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, lr=local.rate, weight_decay=local.weight_decay)
    else:
        optimizer = torch.optim.SGD(parameters, lr=local.rate, momentum=local.momentum, weight_decay=local.weight_decay)
    losses = []
    for take in batches(len(Y), local, rng(5)):
        optimizer.zero_grad()
        step = functional.cross_entropy(network(X[take]), Y[take])
        step.backward()
        optimizer.step()
        losses.append(step.item())
    torch.testing.assert_close(replica.theta, flatten(network), atol=1e-6, rtol=0)
    assert not torch.allclose(replica.theta, theta, atol=1e-2)
    assert loss == pytest.approx(np.mean(losses), abs=1e-6)


def test_the_loss_is_the_mean_over_the_steps() -> None:
    """w = 1 then 0.8 (lr 0.1): losses 1 and 0.64."""
    w, loss = train_one(Local(steps=2, lr=0.1))
    assert (w, loss) == pytest.approx((0.64, 0.82))


# -------------------------------------------------------------------------------------- proximal term


@pytest.mark.parametrize(
    ("steps", "anchor", "expected"),
    [
        (1, 0.5, 0.775),  # 1 - 0.1 * (2*1 + 0.5*(1 - 0.5))
        (2, 0.5, 0.60625),  # 0.775 - 0.1 * (2*0.775 + 0.5*(0.775 - 0.5))
        (1, 3.0, 0.9),  # 1 - 0.1 * (2*1 + 0.5*(1 - 3))
    ],
)
def test_the_proximal_gradient_by_hand(steps: int, anchor: float, expected: float) -> None:
    w, _ = train_one(Local(steps=steps, lr=0.1), proximal=(anchor, 0.5))
    assert w == pytest.approx(expected)


def test_the_reported_loss_is_the_datas_alone() -> None:
    assert train_one(Local(steps=1, lr=0.1), proximal=(5.0, 0.5))[1] == pytest.approx(1.0)


def test_a_pull_of_one_over_lr_reaches_the_anchor_in_one_step() -> None:
    """x = 0: there is no data gradient. 1 - 0.5 * 2 * (1 - 3) = 3."""
    assert train_one(Local(steps=1, lr=0.5), x=(0.0,), proximal=(3.0, 2.0))[0] == pytest.approx(3.0)


@pytest.mark.parametrize(("steps", "expected"), [(1, 0.1), (2, 0.01)])
def test_a_stronger_pull_is_implicit(steps: int, expected: float) -> None:
    """lr mu = 9, no data gradient: w <- (w + 9 * 0) / 10. Explicitly it would be w - 9 w = -8 w."""
    assert train_one(Local(steps=steps, lr=1.0), x=(0.0,), proximal=(0.0, 9.0))[0] == pytest.approx(expected)


@pytest.mark.parametrize("mu", [1.5, 3.0, 100.0, 1e6])
def test_a_stronger_pull_never_diverges(mu: float) -> None:
    """The data pulls to 0, the anchor is 1, the start 5: w ends between 0 and 1, the nearer to 1 the larger mu."""
    w, _ = train_one(Local(steps=200, lr=0.9), start=5.0, x=(0.5,), proximal=(1.0, mu))
    # The fixed point of w' = (w (1 - 2 lr x^2) + lr mu) / (1 + lr mu) is mu / (mu + 2 x^2), that of the objective.
    assert w == pytest.approx(mu / (mu + 0.5), abs=1e-5)


def test_running_statistics_are_not_pulled() -> None:
    model = Model(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    theta, local = model.init(rng()), Local(steps=1, batch="full")
    free, pulled = model.replica().load(theta), model.replica().load(theta)
    train(free, X, Y, local, rng())
    train(pulled, X, Y, local, rng(), proximal=Proximal(torch.full_like(theta, 7), 1.0))
    assert torch.equal(free.theta[model.parameters :], pulled.theta[model.parameters :])
    assert not torch.allclose(free.weights, pulled.weights, atol=0.1)
    assert not torch.equal(free.theta[model.parameters :], theta[model.parameters :])


# ------------------------------------------------------------------------------ offset, sample weights


def test_offset_logits_by_hand() -> None:
    """Zero weights, offset (ln 3, 0): probabilities 3/4, 1/4. For label 1: gradient (3/4, -3/4), loss ln 4."""
    replica = linear(1, 2).replica().load(vector(0, 0))
    offset = torch.tensor([[3.0, 1.0]]).log()
    loss, _ = train(replica, torch.ones(1, 1), torch.tensor([1]), Local(lr=1.0), rng(), offset=offset)
    assert replica.theta.tolist() == pytest.approx([-0.75, 0.75])
    assert loss == pytest.approx(np.log(4))


def test_offset_logits_follow_their_samples_into_the_batches() -> None:
    """Sample by sample, unshuffled: only the second offset is ln 3, so only the second step has gradient 3/4.

    Step 1 (label 0, no offset): gradient (-1/2, 1/2), weights (1/2, -1/2). Step 2 (input 0): none, but the loss is
    that of the offset alone, -ln(1/4). Mean loss (ln 2 + ln 4) / 2.
    """
    replica = linear(1, 2).replica().load(vector(0, 0))
    offset = torch.tensor([[1.0, 1.0], [3.0, 1.0]]).log()
    x, y = torch.tensor([[1.0], [0.0]]), torch.tensor([0, 1])
    loss, _ = train(replica, x, y, Local(batch=1, lr=1.0, shuffle=False), rng(), offset=offset)
    assert replica.theta.tolist() == pytest.approx([0.5, -0.5])
    assert loss == pytest.approx((np.log(2) + np.log(4)) / 2)


@pytest.mark.parametrize(("steps", "expected"), [(1, 0.6), (2, 0.28)])
def test_an_offset_model_is_frozen(steps: int, expected: float) -> None:
    """Trained and frozen model both start at w = 1, target 0: the output is w + 1, the gradient 2 (w + 1) by w alone.

    1 - 0.1 * 4 = 0.6 (through both it would be 8), then 0.6 - 0.1 * 3.2 = 0.28 (the frozen one is still 1).
    """
    task = Fit(All(vector(1)), Local(steps=steps, lr=0.1), offset=All(vector(1)))
    assert fit(ONE, task, column([1.0], [0.0])).tolist() == pytest.approx([expected])


def test_sample_weights_by_hand() -> None:
    """w = 1, x = 1, targets 0 and 3, weights 1/2 and 0: loss mean(1/2 * 1, 0), gradient mean(1/2 * 2, 0)."""
    w, loss = train_one(Local(lr=0.1), x=(1.0, 1.0), y=(0.0, 3.0), weights=vector(0.5, 0))
    assert (w, loss) == pytest.approx((0.95, 0.25))


def test_sample_weights_follow_their_samples_into_the_batches() -> None:
    """One sample at a time, unshuffled: the first weighs nothing, the second moves w by -0.1 * 2 * (1 - 3)."""
    local = Local(batch=1, lr=0.1, shuffle=False)
    assert train_one(local, x=(1.0, 1.0), y=(0.0, 3.0), weights=vector(0, 1))[0] == pytest.approx(1.4)


# ------------------------------------------------------------------------------------- the batch plan

sizes, batch_sizes, few = st.integers(1, 30), st.integers(1, 35), st.integers(1, 4)


def plan(n: int, local: Local, seed: int = 0) -> list[list[int]]:
    return [list(range(n)) if take is None else take.tolist() for take in batches(n, local, rng(seed))]


def joined(parts: list[list[int]]) -> list[int]:
    return [sample for part in parts for sample in part]


@given(sizes, batch_sizes, few, st.booleans())
def test_every_epoch_takes_every_sample_once(n: int, batch: int, epochs: int, shuffle: bool) -> None:
    parts = plan(n, Local(epochs=epochs, batch=batch, shuffle=shuffle))
    per_epoch = -(-n // batch)
    assert len(parts) == epochs * per_epoch
    for epoch in range(epochs):
        mine = parts[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(joined(mine)) == list(range(n))
        assert [len(part) for part in mine[:-1]] == [batch] * (per_epoch - 1)


@given(sizes, batch_sizes, st.integers(1, 40))
def test_steps_go_round_the_data_as_epochs_do(n: int, batch: int, steps: int) -> None:
    parts = plan(n, Local(steps=steps, batch=batch))
    assert len(parts) == steps
    assert parts == list(islice(plan(n, Local(epochs=steps, batch=batch)), steps))


@given(sizes, batch_sizes, few)
def test_unshuffled_batches_keep_the_order(n: int, batch: int, epochs: int) -> None:
    assert joined(plan(n, Local(epochs=epochs, batch=batch, shuffle=False))) == [*range(n)] * epochs


@given(st.integers(5, 30), st.integers(1, 4), st.integers(0, 1000))
def test_the_same_key_gives_the_same_plan_and_another_key_another(n: int, batch: int, seed: int) -> None:
    local = Local(epochs=4, batch=batch)
    assert plan(n, local, seed) == plan(n, local, seed)
    assert plan(n, local, seed) != plan(n, local, seed + 1)


def test_epochs_are_shuffled_anew() -> None:
    parts = plan(20, Local(epochs=2, batch=10))
    assert joined(parts[:2]) != joined(parts[2:])


@pytest.mark.parametrize("local", [Local(epochs=2, batch="full"), Local(steps=2, batch=8), Local(epochs=2, batch=5)])
def test_a_client_with_no_more_samples_than_a_batch_uses_all_of_them(local: Local) -> None:
    assert list(batches(5, local, rng())) == [None, None]


def test_one_epoch_is_the_default() -> None:
    assert len(plan(10, Local(batch=4))) == 3


def test_contradictory_settings_are_refused() -> None:
    with raises("argument-invalid"):
        Local(epochs=1, steps=1)
    with raises("argument-invalid"):
        Local(optimizer="adam", momentum=0.9)


# ------------------------------------------------------------------------------- kept optimiser state

KEPT = [
    Local(steps=3, batch="full", lr=0.1, momentum=0.9, keep_optimizer=True),
    Local(steps=3, batch="full", lr=0.01, optimizer="adam", keep_optimizer=True),
]


def fit(model: Model, task: Fit, data: Data, moment: Moment | None = None, client: int = 0) -> Tensor:
    """The model one client trains, through the workbench that every engine uses."""
    done = TaskRunner(model).visit([task], client, data, {}, moment or Moment(0, 0, 0))
    (answer,) = done.answers
    assert isinstance(answer, FitAnswer)
    assert answer.theta is not None
    return answer.theta


def visits(local: Local, count: int) -> Iterator[Tensor]:
    """The model after each of several visits, each going on from the last."""
    bench, data = TaskRunner(SMALL), Data((X, Y), (X, Y))
    theta, keeps = SMALL.init(rng()), dict[str, Tensor]()
    for number in range(count):
        done = bench.visit([Fit(All(theta), local)], 0, data, keeps, Moment(0, number, 0))
        (answer,) = done.answers
        assert isinstance(answer, FitAnswer)
        assert answer.theta is not None
        theta = answer.theta
        keeps |= done.keeps
        yield theta


@pytest.mark.parametrize("local", KEPT, ids=["momentum", "adam"])
def test_two_visits_with_a_kept_optimiser_are_one_long_one(local: Local) -> None:
    twice = list(visits(local, 2))[-1]
    once = list(visits(dataclasses.replace(local, steps=6), 1))[-1]
    reset = list(visits(dataclasses.replace(local, keep_optimizer=False), 2))[-1]
    assert torch.equal(twice, once)
    assert not torch.allclose(reset, once, atol=1e-3)


@pytest.mark.parametrize("local", KEPT, ids=["momentum", "adam"])
def test_training_does_not_change_the_state_it_was_given(local: Local) -> None:
    replica = SMALL.replica().load(SMALL.init(rng()))
    _, state = train(replica, X, Y, local, rng())
    before = state.clone()
    _, after = train(replica, X, Y, local, rng(), state=state)
    assert torch.equal(state, before)
    assert not torch.equal(after, before)


@pytest.mark.parametrize(("local", "length"), [(Local(), 0), (Local(momentum=0.5), 1), (Local(optimizer="adam"), 3)])
def test_a_state_of_another_size_is_refused(local: Local, length: int) -> None:
    """f(x) = w x has one number: no state, one velocity, or two moments and a count."""
    with raises("checkpoint-mismatch", match=f"state of 4 numbers does not fit one of {length}"):
        train(ONE.replica().load(vector(1)), torch.ones(1, 1), vector(0), local, rng(), state=torch.zeros(4))


# ------------------------------------------------------------------------------------ through a visit


@pytest.mark.parametrize(("round", "expected"), [(0, 0.8), (1, 0.9), (2, 0.95)])
def test_the_learning_rate_decays_by_round(round: int, expected: float) -> None:
    """1 - 0.1 * 0.5^round * 2."""
    task = Fit(All(vector(1)), Local(lr=0.1, lr_decay=0.5))
    assert fit(ONE, task, column([1.0], [0.0]), Moment(0, round, 0)).tolist() == pytest.approx([expected])


def test_dropout_is_drawn_from_seed_round_task_and_client() -> None:
    """Full batches have no order, so only the dropout masks can differ."""
    model = Model(lambda: nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.5), nn.Linear(16, 3)))
    task, data = Fit(All(model.init(rng())), Local(steps=2, batch="full")), Data((X, Y), (X, Y))

    def trained(seed: int = 1, round: int = 1, number: int = 1, client: int = 1) -> Tensor:
        return fit(model, task, data, Moment(seed, round, number), client)

    one = trained()
    assert torch.equal(trained(), one)
    for other in (trained(seed=2), trained(round=2), trained(number=2), trained(client=2)):
        assert not torch.equal(other, one)


def pooled(norm: nn.Module) -> Model:
    return Model(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), norm, nn.Flatten(), nn.Linear(4, 2))
    )


NORMS: dict[str, tuple[Model, tuple[int, ...], int]] = {
    "2d on 1x1 maps": (pooled(nn.BatchNorm2d(4)), (1, 5, 5), 2),
    "groups of one channel": (pooled(nn.GroupNorm(4, 4)), (1, 5, 5), 2),
    "groups of two channels": (pooled(nn.GroupNorm(2, 4)), (1, 5, 5), 1),
    "3d on 1x1x1 maps": (
        Model(lambda: nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.BatchNorm3d(2), nn.Flatten(), nn.Linear(2, 2))),
        (2, 3, 3, 3),
        2,
    ),
    "2d on larger maps": (
        Model(lambda: nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(9, 2))),
        (1, 3, 3),
        1,
    ),
    "none": (Model(lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 2))), (1, 3, 3), 1),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_last_batch_of_one_trains_whatever_is_normalised(name: str) -> None:
    """Nine samples in batches of four: where one value per channel cannot be normalised, the ninth joins the last."""
    model, shape, least = NORMS[name]
    x, y = torch.randn(9, *shape, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 2
    replica = model.replica().load(model.init(np.random.default_rng(0)))
    before = replica.theta.clone()
    assert replica.least_batch(x) == least
    assert torch.equal(replica.theta, before)  # looking changes nothing, running statistics neither
    loss, _ = train(replica, x, y, Local(epochs=1, batch=4), np.random.default_rng(0))
    assert np.isfinite(loss)
    assert not torch.equal(replica.theta, before)
    assert replica.network.training
