"""How sure the cluster of a newcomer is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats
from torch import nn

import coterie
from coterie.training.predict import _better


def samples(sign: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    return x, (sign * x[:, 0] > 0).astype(np.int64)


def test_a_paired_t_test_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, error 1/sqrt(3), t = 2 sqrt(3) with two degrees of freedom."""
    assert _better(np.array([1.0, 2.0, 3.0])) == pytest.approx(stats.t.cdf(2 * 3**0.5, 2))
    assert _better(np.array([-1.0, 1.0])) == 0.5
    assert (_better(np.array([2.0, 2.0])), _better(np.array([-2.0, -2.0])), _better(np.zeros(3))) == (1, 0, 0.5)
    assert _better(np.array([5.0])) == 0.5  # one sample tells nothing


BOTH_KINDS = [coterie.WeCFL(k=2), coterie.IFCA(k=2), coterie.CAM(base=coterie.FeSEM(k=2)), coterie.Halves()]


@pytest.mark.parametrize("method", BOTH_KINDS, ids=lambda method: type(method).__name__)
def test_clear_newcomers_are_sure_and_a_mixed_one_is_not(method: Any) -> None:
    clients = [samples(1 if i % 2 else -1, 40, i) for i in range(12)]
    result = coterie.run(method, clients, lambda: nn.Linear(3, 2), rounds=20)
    one, two = samples(1, 30, 50), samples(-1, 30, 51)
    mixed = np.concatenate([one[0][:15], two[0][:15]]), np.concatenate([one[1][:15], two[1][:15]])
    placed = result.admit([one, two, mixed])
    assert placed.assignments[0] != placed.assignments[1]
    assert placed.confidence(0) > 0.99
    assert placed.confidence(1) > 0.99
    assert placed.confidence(2) < 0.99


def test_one_cluster_is_sure_and_without_clusters_there_is_nothing_to_be_sure_of() -> None:
    clients = [samples(1, 20, i) for i in range(4)]
    one = coterie.run(coterie.WeCFL(k=1), clients, lambda: nn.Linear(3, 2), rounds=1)
    assert one.admit(clients[:1]).confidence(0) == 1
    for method in (coterie.FedAvg(), coterie.FedEM(k=2)):
        result = coterie.run(method, clients, lambda: nn.Linear(3, 2), rounds=1)
        assert math.isnan(result.admit(clients[:1]).confidence(0))
