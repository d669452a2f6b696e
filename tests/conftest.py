"""Shared by the tests: a tiny model, a tiny federation, one client's data, and an `ask` that follows a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor, nn

from coterie.data.federation import Federation, Samples
from coterie.model import Loss, Model
from coterie.tasks import Reply, Task


def pytest_configure() -> None:
    torch.set_num_threads(1)
    # No deadline: the machine may be busy. Derandomised: a red test is red again.
    settings.register_profile("coterie", deadline=None, max_examples=50, derandomize=True)
    settings.load_profile("coterie")


def linear(inputs: int = 2, outputs: int = 2, *, bias: bool = False, loss: Loss = "cross_entropy") -> Model:
    """One linear layer: its vector is the weight matrix row by row, then the bias."""
    return Model(partial(nn.Linear, inputs, outputs, bias=bias), loss)


def vector(*numbers: float) -> Tensor:
    """A float tensor (n,)."""
    return torch.tensor(numbers, dtype=torch.float32)


@dataclass(frozen=True, eq=False)
class Data:
    """What lies at one client, without a federation around it."""

    train: Samples
    test: Samples


def column(inputs: list[float], labels: list[int] | list[float]) -> Data:
    """Samples of one feature; the same to train and to test on."""
    samples = vector(*inputs)[:, None], torch.tensor(labels)
    return Data(samples, samples)


def make_federation(clients: int = 4, samples: int = 10, seed: int = 0) -> Federation:
    """Two features; the label is whether the first is positive or, for the second half of the clients, negative."""
    rng = np.random.default_rng(seed)
    truth = [client * 2 // clients for client in range(clients)]
    arrays = []
    for cluster in truth:
        x = rng.normal(size=(samples, 2))
        arrays.append((x, ((x[:, 0] > 0) != bool(cluster)).astype(np.int64)))
    return Federation.from_arrays(arrays, truth=truth, outputs=2, seed=seed)


class ScriptedAsk:
    """An `ask` for a method under test: notes what it was asked and answers from its script, in order."""

    def __init__(self, *replies: Reply | list[Reply]) -> None:
        self.asked: list[Task | list[Task]] = []
        self._replies = list(replies)

    def __call__(self, task: Any, /) -> Any:
        self.asked.append(task)
        assert self._replies, f"asked {len(self.asked)} times, more often than the script has replies"
        return self._replies.pop(0)


@pytest.fixture
def tiny_federation() -> Callable[..., Federation]:
    """The factory `make_federation(clients, samples, seed)`."""
    return make_federation


@pytest.fixture
def tiny_model() -> Model:
    """Two inputs, two classes, no bias: four numbers."""
    return linear()


@pytest.fixture
def scripted_ask() -> type[ScriptedAsk]:
    """The class `ScriptedAsk(*replies)`."""
    return ScriptedAsk
