"""Every method on the pretend accelerator (tests/sham.py): what the CPU gives, and nothing on the wrong device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import toys
from torch import Tensor, nn

import coterie
import sham
from conftest import PAPERS
from coterie.core.compute import HOST, Compute
from coterie.core.tasks import Local
from coterie.training.result import Result

if not sham.register():
    pytest.skip(f"this PyTorch has no {sham.SET_UP}, which was private to it", allow_module_level=True)

SHAM, LOCAL = Compute("sham:0"), Local(steps=2, batch=4, lr=0.1)


@dataclass(frozen=True)
class Scenario:
    """A way to train; `within`: how far the device may be from the CPU."""

    build: Callable[[], nn.Module] = toys.linear
    task: Literal["classification", "regression"] = "classification"
    local: Local = LOCAL
    within: float = 1e-6


def registering() -> nn.Module:
    """A network whose module, this one, makes the device known to the process that builds it."""
    return toys.linear()


def convolutions() -> nn.Module:
    """The four inputs as a signal."""
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))


SCENARIOS: Mapping[str, Scenario] = {
    "plain": Scenario(),
    "epochs": Scenario(local=Local(epochs=2, batch=8, lr=0.05)),
    "momentum-kept": Scenario(
        build=registering, local=Local(steps=3, batch=4, lr=0.05, momentum=0.9, keep_optimizer=True, clip=0.5)
    ),
    # A device has no doubles in its updates. Adam divides by the size of a gradient, which makes rounding large.
    "adam-kept": Scenario(
        local=Local(steps=3, batch=4, lr=0.02, optimizer="adam", keep_optimizer=True, weight_decay=0.01), within=1e-4
    ),
    "batchnorm": Scenario(build=toys.batchnorm, within=1e-5),
    "convolutions": Scenario(build=convolutions, within=1e-5),
    "regression": Scenario(build=toys.regressor, task="regression", local=Local(steps=3, batch=4, lr=0.05, clip=1.0)),
}


@dataclass(frozen=True, eq=False)
class Ran:
    """A finished run, what its clients keep, and what was copied in it."""

    result: Result[Any]
    memory: Mapping[str, Tensor]
    counts: sham.Counts


@functools.cache
def ran(compute: Compute, engine: str, name: str, scenario: str) -> Ran:
    s = SCENARIOS[scenario]
    federation, workers = toys.toy(s.task), {"batched": 1, "workers": 2}.get(engine)
    sham.COUNTS.reset()
    with toys.engine((engine, workers), federation, s.build, compute) as opened:
        method = toys.method(name, s.local)
        result = coterie.run(method, federation, model=s.build, rounds=2, participation=5, seed=1, engine=opened)
        return Ran(result, opened.memory.tensors(), sham.Counts(**vars(sham.COUNTS)))


SLOW = ("stocfl", "stocfl-cam")  # which try many thresholds


def cells() -> Iterator[Any]:
    """`make test` has every method once, on one engine and in one scenario; CI has every method on both in another."""
    for i, name in enumerate(PAPERS):
        scenarios = [s for s in SCENARIOS if (name, s) != ("fedrc", "regression")]  # which is of classes
        daily, more = scenarios[i % len(scenarios)], scenarios[(i + 3) % len(scenarios)]
        if name not in SLOW:
            yield ("batched", "sequential")[i % 2], name, daily
        for engine in ("sequential", "batched"):
            yield pytest.param(engine, name, more, marks=pytest.mark.exhaustive)


@pytest.mark.parametrize(("engine", "name", "scenario"), list(cells()))
def test_a_method_does_the_same_on_an_accelerator(engine: str, name: str, scenario: str) -> None:
    there, here = ran(SHAM, engine, name, scenario), ran(HOST, engine, name, scenario)
    within = SCENARIOS[scenario].within
    assert not any(event.missing or event.unscored for event in there.result.history)
    assert not there.counts.refused  # an engine that catches such an error computes clients one by one
    np.testing.assert_array_equal(there.result.assignments, here.result.assignments)
    toys.assert_same(there.result.state, here.result.state, within=within)
    toys.assert_same(there.memory, here.memory, within=within)
    toys.assert_same(there.result.clients, here.result.clients, within=10 * within)
    assert there.counts.down
    assert here.counts == sham.Counts()


@pytest.mark.exhaustive
def test_workers_have_the_device_each() -> None:
    """In processes that are started anew: a forked one could not use an accelerator that its parent has used."""
    there, here = (
        ran(compute, engine, "ditto", "momentum-kept") for compute, engine in ((SHAM, "workers"), (HOST, "sequential"))
    )
    assert not any(event.missing or event.unscored for event in there.result.history)
    toys.assert_same(there.result.state, here.result.state, within=1e-6)
    toys.assert_same(there.memory, here.memory, within=1e-6)
    assert there.counts == sham.Counts()  # in this process nothing was copied
