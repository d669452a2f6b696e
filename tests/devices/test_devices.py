"""What a run on an accelerator copies, draws and records, on the pretend one of tests/sham.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
import sham
from conftest import make_federation
from coterie.client.contract import Moment
from coterie.client.training import clip_rows
from coterie.core.compute import Compute
from coterie.core.model import Model
from coterie.core.seeds import own_random_numbers, seed_device
from coterie.core.tables import ByClient
from coterie.core.tasks import All, Best, Evaluate, Fit, Fitted, Local, Pick, Score, Task
from coterie.data.federation import Federation
from coterie.engines.batched import Batched
from coterie.engines.contract import Engine, Outcome, Visit
from coterie.engines.sequential import Sequential

if not sham.register():
    pytest.skip(f"this PyTorch has no {sham.SET_UP}, which was private to it", allow_module_level=True)

SHAM = Compute("sham:0")
CLIENTS, P = 6, 6  # numbers of the model: 2 x 2 weights and 2 biases
LOCAL = Local(epochs=2, batch=3, lr=0.1)
ENGINES: dict[str, Callable[[Model, Federation], Engine]] = {
    "sequential": lambda model, data: Sequential(model, data, compute=SHAM),
    "batched": lambda model, data: Batched(model, data, SHAM),
}


def linear() -> nn.Module:
    return nn.Linear(2, 2)


def model(build: Callable[[], nn.Module] = linear) -> Model:
    return Model(build)


def visit(engine: Engine, *tasks: Task, round: int = 0) -> Outcome:
    sham.COUNTS.refused = 0
    found = engine.visit(Visit(tasks, torch.arange(CLIENTS), Moment(0, round, 0)))
    assert not found.missing
    assert not sham.COUNTS.refused
    return found


def models(outcome: Outcome) -> Tensor:
    (reply,) = outcome.replies
    assert isinstance(reply, Fitted)
    assert reply.theta is not None
    return reply.theta


def counted(engine: Engine, *tasks: Task, round: int = 0) -> sham.Counts:
    """What is copied for a second visit: samples are on the device by then."""
    visit(engine, *tasks)
    sham.COUNTS.reset()
    visit(engine, *tasks, round=1)
    return sham.Counts(**vars(sham.COUNTS))


# ---------------------------------------------------------------------------------------------------------- transfers


@pytest.mark.parametrize("engine", ENGINES)
def test_models_go_up_once_and_come_down_once(engine: str) -> None:
    """One model up for everyone and the numbers of the samples; trained models down: in one copy, if together."""
    data = make_federation(CLIENTS)
    found = counted(ENGINES[engine](model(), data), Fit(All(torch.zeros(P)), LOCAL))
    steps = 2 * 8  # epochs, and eight of ten samples
    if engine == "sequential":
        assert found.up == 1 + CLIENTS  # the model, and each client's plan of batches
        assert found.up_bytes == 4 * P + CLIENTS * 8 * steps
        assert (found.down, found.reads) == (CLIENTS, CLIENTS)  # models; losses
    else:
        # rows (T, G, b) and batch sizes (T, G) of one group, and the shifts of the low-rank form if it is used
        assert found.up <= 1 + 3
        assert found.up_bytes <= 4 * P + 8 * (6 * CLIENTS * 3 + 6 * CLIENTS + CLIENTS)
        assert (found.down, found.reads) == (2, 0)  # models; losses
    assert found.down_bytes >= 4 * P * CLIENTS
    assert found.down_bytes <= 4 * (P + 1) * CLIENTS


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_of_clusters_copies_the_centers_once(engine: str) -> None:
    """However many tasks and clients use them: to choose by, to train and to predict with."""
    centers, labels = torch.randn(3, P), ByClient(torch.arange(CLIENTS), torch.arange(CLIENTS) % 3)
    best = Best(centers)
    tasks: list[Task] = [Score(centers), Fit(best, LOCAL), Fit(Pick(centers, labels), LOCAL), Evaluate((best,))]
    sizes: list[int] = []
    for scale in (1, 4):
        wide = torch.randn(3 * scale, P)
        tasks[0] = Score(wide)
        sizes.append(counted(ENGINES[engine](model(), make_federation(CLIENTS)), *tasks).up_bytes)
    assert sizes[1] - sizes[0] == 4 * 9 * P  # what the larger centers are more, once


@pytest.mark.parametrize("room", [1.0, 0.0])
def test_samples_stay_on_the_device_while_there_is_room(room: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.client.visit.ROOM", room)
    data, task = make_federation(CLIENTS), Evaluate((All(torch.zeros(P)),), split="train")
    found = counted(Sequential(model(), data, compute=SHAM), task)
    samples = sum(part.nbytes for client in range(CLIENTS) for part in data.samples(client, "train"))
    assert found.up_bytes == 4 * P + (0 if room else samples)
    assert found.pinned == found.up  # all of it from pinned memory


def test_data_that_may_change_is_copied_again() -> None:
    class Changing:
        def __init__(self) -> None:
            self.data = make_federation(CLIENTS)

        def client(self, client: int) -> Any:
            return self.data.client(client)

    source = Changing()
    engine = Sequential(model(), source, compute=SHAM)
    task = Evaluate((All(torch.tensor([9.0, 0, -9, 0, 0, 0])),), split="train")
    first = visit(engine, task).replies[0]
    source.data = make_federation(CLIENTS, seed=3)
    again, fresh = visit(engine, task).replies[0], Sequential(model(), make_federation(CLIENTS, seed=3))
    assert not torch.equal(first.loss, again.loss)  # type: ignore[union-attr]
    torch.testing.assert_close(again.loss, visit(fresh, task).replies[0].loss)  # type: ignore[union-attr]


# ----------------------------------------------------------------------------------- what is broken on purpose is found


def _zeros(x: Tensor) -> Tensor:
    return x + torch.zeros(x.shape[1])


def _numpy(x: Tensor) -> Tensor:
    return x * float(x.detach().numpy().max())


def _generator(x: Tensor) -> Tensor:
    return x + torch.randn(x.shape, device=x.device, generator=torch.Generator())


class _Broken(nn.Module):
    """A network whose author forgot that there are devices."""

    def __init__(self, mistake: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.mistake = nn.Linear(2, 2), mistake

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(self.mistake(x))
        return found


@pytest.mark.parametrize("mistake", [_zeros, _numpy, _generator])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_mistake_about_devices_is_found(engine: str, mistake: Callable[[Tensor], Tensor]) -> None:
    made = ENGINES[engine](model(partial(_Broken, mistake)), make_federation(CLIENTS))
    task = Fit(All(torch.zeros(P)), LOCAL)
    found = made.visit(Visit((task,), torch.arange(CLIENTS), Moment(0, 0, 0)))
    assert len(found.missing) == CLIENTS
    assert all("device" in one.reason for one in found.missing)


# ------------------------------------------------------------------------------------------------------ random numbers


@pytest.mark.parametrize("engine", [Sequential, Batched])
def test_two_devices_see_the_same_batches(engine: type[Any]) -> None:
    """The plan is made on the host: after steps on single samples in an order of its own the models are the same."""
    task = Fit(All(torch.zeros(P)), Local(steps=11, batch=1, lr=0.5))
    devices = ("cpu", "sham:0", "sham:1") if engine is Batched else ("cpu", "sham:0")
    found = [models(visit(engine(model(), make_federation(CLIENTS), compute=Compute(d)), task)) for d in devices]
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=1e-6, atol=1e-6)
    other = engine(model(), make_federation(CLIENTS)).visit(Visit((task,), torch.arange(CLIENTS), Moment(1, 0, 0)))
    assert (models(other) - found[0]).abs().max() > 1e-3


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2))


def test_a_seed_is_the_devices_own() -> None:
    drawn: dict[str, list[list[float]]] = {}
    with own_random_numbers(torch.device("sham:1")):
        for device in ("sham:1", "sham:0", "sham:1"):
            seed_device(torch.device("sham:1"), 5)
            drawn.setdefault(device, []).append(torch.rand(3, device=device).tolist())
    assert drawn["sham:1"][0] == drawn["sham:1"][1] != drawn["sham:0"][0]


def test_dropout_is_drawn_from_the_clients_seed() -> None:
    """Whoever was visited before, and whatever the device drew; and the user's own random numbers are left alone."""
    size, device = Model(dropping).size, "sham:0"
    theta, data = torch.randn(size, generator=torch.Generator().manual_seed(0)), make_federation(CLIENTS)
    engine = Sequential(Model(dropping), data, compute=Compute(device))
    state = torch.get_device_module("sham").get_rng_state(device)
    first = engine.visit(Visit((Fit(All(theta), LOCAL),), torch.arange(CLIENTS), Moment(0, 0, 0)))
    assert torch.equal(torch.get_device_module("sham").get_rng_state(device), state)
    torch.rand(7, device=device)
    one = engine.visit(Visit((Fit(All(theta), LOCAL),), torch.tensor([3]), Moment(0, 0, 0)))
    assert torch.equal(models(one)[0], models(first)[3])
    other = engine.visit(Visit((Fit(All(theta), LOCAL),), torch.tensor([3]), Moment(1, 0, 0)))
    assert not torch.equal(models(other)[0], models(first)[3])


def test_a_rerun_on_one_device_gives_the_same_bits() -> None:
    runs = [
        coterie.run("ifca", make_federation(), dropping, rounds=2, device="sham", engine="sequential") for _ in "ab"
    ]
    assert torch.equal(runs[0].state, runs[1].state)


# ------------------------------------------------------------------------------------------------------ without doubles


@pytest.mark.parametrize(
    "local", [LOCAL, Local(steps=4, batch=3, lr=0.1, optimizer="adam", clip=0.1)], ids=["sgd", "adam"]
)
@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_a_device_without_doubles_trains(engine: str, local: Local) -> None:
    method = coterie.IFCA(k=2, local=local)
    options: dict[str, Any] = {"rounds": 2, "engine": engine, "workers": 1 if engine == "batched" else None}
    here = coterie.run(method, make_federation(), "mlp", device="cpu", **options)
    with sham.without_doubles():
        there = coterie.run(method, make_federation(), "mlp", device="sham", **options)
    assert not any(event.missing or event.unscored for event in there.history)
    torch.testing.assert_close(there.state, here.state, rtol=1e-4, atol=1e-5)


def test_a_regression_without_doubles() -> None:
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(12, 2)).astype(np.float32), 50 + 9 * rng.normal(size=12)) for _ in range(4)]
    data = Federation.from_arrays(arrays, task="regression", standardise=False, standardise_y=False).prepared(
        targets=True
    )
    here = coterie.run("fedavg", data, "linear", rounds=2, device="cpu")
    with sham.without_doubles():
        there = coterie.run("fedavg", data, "linear", rounds=2, device="sham")
    torch.testing.assert_close(there.clients.loss, here.clients.loss, rtol=1e-4, atol=1e-4)


def test_clipping_without_doubles_survives_squares_that_overflow() -> None:
    for device in ("cpu", "sham"):
        large = torch.tensor([[3e30, 4e30], [0.3, 0.4], [0.0, 0.0]]).to(device)
        clip_rows(large, 1.0)
        torch.testing.assert_close(large.cpu(), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
