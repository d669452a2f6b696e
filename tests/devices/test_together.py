"""Networks with convolutions on a device: several clients at once, by `client.batched.mapped`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import coterie
import sham
from conftest import make_federation
from coterie.client.batched.mapped import MappedTraining
from coterie.client.contract import Moment
from coterie.core.compute import Compute
from coterie.core.model import Model
from coterie.core.registry import METHODS, NO_CODE
from coterie.core.tasks import All, Fit, Local
from coterie.engines.batched import Batched
from coterie.engines.contract import Visit

if not sham.register():
    pytest.skip(f"this PyTorch has no {sham.SET_UP}, which was private to it", allow_module_level=True)

CLIENTS = 6
LOCAL = Local(epochs=2, batch=3, lr=0.1)


def convolutions() -> nn.Module:
    """The two inputs as a signal."""
    return nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, 2))


def with_statistics() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 3, 1), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(6, 2))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2))


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients were trained together, each time."""
    found: list[int] = []
    train = MappedTraining.train

    def counted(self: MappedTraining, trainings: Any) -> Any:
        found.append(len(trainings))
        return train(self, trainings)

    monkeypatch.setattr(MappedTraining, "train", counted)
    return found


def test_a_cohort_goes_up_once_and_comes_down_once(groups: list[int]) -> None:
    model = Model(convolutions)
    engine = Batched(model, make_federation(CLIENTS), Compute("sham:0"))
    for round in (0, 1):
        sham.COUNTS.reset()
        task = Fit(All(torch.zeros(model.size)), LOCAL)
        assert not engine.visit(Visit((task,), torch.arange(CLIENTS), Moment(0, round, 0))).missing
    assert groups == [CLIENTS, CLIENTS]
    assert sham.COUNTS.up <= 1 + 2  # the model; rows and sizes of batches
    assert (sham.COUNTS.down, sham.COUNTS.reads, sham.COUNTS.refused) == (2, 0, 0)  # models; losses


@pytest.mark.parametrize("method", ["ditto", "ifca", "fedrep"])
def test_it_is_what_a_processor_gives(method: str, groups: list[int]) -> None:
    """Ditto pulls its models and keeps them; FedRep trains a head, then the body."""
    local = Local(steps=3, batch=4, lr=0.05, momentum=0.9, keep_optimizer=method == "ditto", clip=0.5)
    made = METHODS.build(method, {"local": local}, NO_CODE)
    options: dict[str, Any] = {"rounds": 2, "seed": 1}
    there = coterie.run(made, make_federation(), convolutions, device="sham", engine="batched", workers=1, **options)
    assert groups
    groups.clear()
    here = coterie.run(made, make_federation(), convolutions, device="cpu", engine="sequential", **options)
    assert not groups
    assert not any(event.missing or event.unscored for event in there.history)
    torch.testing.assert_close(there.clients.loss, here.clients.loss, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [with_statistics, with_dropout])
def test_other_networks_train_one_by_one(build: Callable[[], nn.Module], groups: list[int]) -> None:
    options: dict[str, Any] = {"rounds": 1, "device": "sham"}
    together = coterie.run("fedavg", make_federation(), build, engine="batched", workers=1, **options)
    assert not groups
    alone = coterie.run("fedavg", make_federation(), build, engine="sequential", **options)
    assert torch.equal(together.state, alone.state)


def test_an_error_of_one_client_is_not_the_others(groups: list[int]) -> None:
    """Together they fail, and one by one it is said whose labels the network has no output for."""
    data = make_federation(CLIENTS)
    (domain,) = data.domains
    domain.y[data.train.row(2)] = 7  # no other client has these samples
    model = Model(convolutions)
    task = Fit(All(torch.zeros(model.size)), LOCAL)
    found = Batched(model, data, Compute("sham:0")).visit(Visit((task,), torch.arange(CLIENTS), Moment(0, 0, 0)))
    assert groups == [CLIENTS]
    assert [one.client for one in found.missing] == [2]
