"""The real data sets, through whatever source this machine can reach.

They stay in the user's own cache (or $COTERIE_DATA), so that they are fetched once, not once per run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data.dataset import Dataset
from coterie.data.download import get, where
from coterie.data.scale import Scale
from coterie.data.sets.har import UCIHAR
from coterie.data.sets.images import CIFAR10, MNIST, FashionMNIST

HAR = Path(__file__).parents[3] / "shared" / "data" / "uci_har_f16.npz"

pytestmark = pytest.mark.data


def load(loader: Any) -> Dataset:
    try:
        found = get(loader.spec)
    except CoterieError as error:
        pytest.skip(str(error))
    assert where(loader.spec) == found
    made: Dataset = loader(normalise="standard")()
    return made


def counts(data: Dataset, test: bool) -> list[int]:
    assert data.official is not None
    return [int(n) for n in np.bincount(data.y.numpy()[data.official == test], minlength=data.classes)]


def statistics(data: Dataset) -> tuple[list[float], list[float]]:
    assert isinstance(data.scale, Scale)
    mean, std = torch.as_tensor(data.scale.mean).flatten(), torch.as_tensor(data.scale.std).flatten()
    return mean.tolist(), std.tolist()


def test_mnist() -> None:
    data = load(MNIST)
    assert data.x.shape == (70_000, 1, 28, 28)
    assert counts(data, False) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(data, True) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    mean, std = statistics(data)
    assert mean == pytest.approx([0.1307], abs=5e-5)
    assert std == pytest.approx([0.3081], abs=5e-5)
    assert data.y[:5].tolist() == [5, 0, 4, 1, 9]


def test_fashion_mnist() -> None:
    data = load(FashionMNIST)
    assert data.x.shape == (70_000, 1, 28, 28)
    assert counts(data, False) == [6000] * 10
    assert counts(data, True) == [1000] * 10
    mean, std = statistics(data)
    assert mean == pytest.approx([0.2860], abs=5e-5)
    assert std == pytest.approx([0.3530], abs=5e-5)


def test_cifar10() -> None:
    data = load(CIFAR10)
    assert data.x.shape == (60_000, 3, 32, 32)
    assert counts(data, False) == [5000] * 10
    assert counts(data, True) == [1000] * 10
    mean, std = statistics(data)
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert std == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-5)


def test_uci_har() -> None:
    if not HAR.exists():
        pytest.skip(f"{HAR.name} does not lie beside the repository")
    data = UCIHAR(path=str(HAR))()
    assert data.x.shape == (10_299, 9, 128)
    assert data.x.dtype == torch.float16
    assert np.bincount(data.y.numpy()).tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
    assert data.client is not None
    assert data.client_names == tuple(str(person) for person in range(1, 31))
    assert np.bincount(data.client).min() == 281
    scaled = data.domain.inputs(data.x)
    assert torch.allclose(scaled.mean((0, 2)), torch.zeros(9), atol=1e-4)
