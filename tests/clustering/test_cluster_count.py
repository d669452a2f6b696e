"""Rules for the number of clusters, on points whose number of groups is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.methods.k import choose_k


def blobs(k: int, each: int = 8, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    middles = np.array([[0, 0], [10, 0], [0, 30], [80, 40], [200, 5]])[:k]
    return torch.from_numpy(np.concatenate([m + rng.normal(size=(each, 2)) * 0.3 for m in middles]))


@pytest.mark.parametrize("rule", ["silhouette", "auto", "gap"])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_blobs_are_counted(rule: Any, k: int) -> None:
    x = blobs(k)
    assert choose_k(x, torch.ones(len(x), dtype=torch.float64), np.random.default_rng(0), rule, most=6).k == k


def test_one_blob_is_one_cluster() -> None:
    """By gap: uniform points in a box. By silhouette: a shell of many dimensions, that no split divides well."""
    rng = np.random.default_rng(0)
    box = torch.from_numpy(rng.uniform(size=(60, 2)))
    assert choose_k(box, torch.ones(60, dtype=torch.float64), np.random.default_rng(0), "gap", most=4).k == 1
    shell = torch.from_numpy(rng.normal(size=(30, 400)))
    assert choose_k(shell, torch.ones(30, dtype=torch.float64), np.random.default_rng(0), "silhouette", most=6).k == 1


@pytest.mark.parametrize("rule", ["silhouette", "gap"])
def test_at_most_as_many_as_allowed_and_fewer_than_points(rule: Any) -> None:
    x = blobs(5)
    assert choose_k(x, torch.ones(len(x), dtype=torch.float64), np.random.default_rng(0), rule, most=3).k <= 3
    for n in (1, 2):
        assert choose_k(x[:n], torch.ones(n, dtype=torch.float64), np.random.default_rng(0), rule).k == 1
    same = torch.ones(6, 2, dtype=torch.float64)
    assert choose_k(same, torch.ones(6, dtype=torch.float64), np.random.default_rng(0), rule).k == 1
