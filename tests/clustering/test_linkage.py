"""Hierarchical clustering, bipartitions and connected pairs, by hand and against a search of all partitions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.clustering.linkage import agglomerate, bipartition, greedy_merge, split_all
from coterie.clustering.similarity import cosines, distances

LINE = distances(torch.tensor([[0.0], [10.0], [1.0], [12.0], [30.0]]), "euclidean")


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, [0, 0, 0, 0, 0]), (2, [0, 0, 0, 0, 1]), (3, [0, 1, 0, 1, 2]), (4, [0, 1, 0, 2, 3]), (5, [0, 1, 2, 3, 4])],
)
def test_a_cut_at_k(k: int, expected: list[int]) -> None:
    """0, 10, 1, 12, 30: complete linkage joins 0-1 (1), 10-12 (2), those (12), 30 (30)."""
    assert agglomerate(LINE, k=k).tolist() == expected
    assert agglomerate(LINE, k=9).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(0.5, [0, 1, 2, 3, 4]), (1.0, [0, 1, 0, 2, 3]), (2.5, [0, 1, 0, 1, 2]), (12.0, [0, 0, 0, 0, 1]), (99, [0] * 5)],
)
def test_a_cut_at_a_distance(threshold: float, expected: list[int]) -> None:
    assert agglomerate(LINE, threshold=threshold).tolist() == expected


def test_linkage_matters() -> None:
    """0, 2, 4, 7: single linkage joins 0, 2, 4 (2 apart); complete joins 0-2, and then 4-7 (3) before 0-4 (4)."""
    four = distances(torch.tensor([[0.0], [2.0], [4.0], [7.0]]), "euclidean")
    assert agglomerate(four, k=2, linkage="single").tolist() == [0, 0, 0, 1]
    assert agglomerate(four, k=2, linkage="complete").tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6])
def test_ties_still_give_exactly_k(k: int) -> None:
    """Six points, all as far from each other: every merge ties, and fcluster's maxclust would give 1 or 6."""
    labels = agglomerate(torch.ones(6, 6) - torch.eye(6), k=k)
    assert sorted(set(labels.tolist())) == list(range(k))
    assert labels[0] == 0


def test_one_point_is_one_cluster() -> None:
    assert agglomerate(torch.zeros(1, 1), k=3).tolist() == [0]
    assert agglomerate(torch.zeros(1, 1), threshold=0.5).tolist() == [0]


def crossing(similarity: Tensor, part: tuple[int, ...]) -> float:
    rest = [i for i in range(len(similarity)) if i not in part]
    return float(similarity[list(part)][:, rest].max())


@st.composite
def similarities(draw: Any) -> Tensor:
    n = draw(st.integers(2, 7))
    values = draw(st.lists(st.integers(-20, 20), min_size=n * n, max_size=n * n))
    half = torch.tensor(values, dtype=torch.float64).reshape(n, n) / 20
    return torch.triu(half, 1) + torch.triu(half, 1).T + torch.eye(n, dtype=torch.float64)


@given(similarities())
def test_the_bipartition_is_the_best_there_is(similarity: Tensor) -> None:
    """Sattler et al., Eq. 30: no other two parts have a smaller largest similarity across."""
    labels, across = bipartition(similarity)
    mine = tuple(torch.nonzero(labels == 0)[:, 0].tolist())
    assert 0 in mine
    assert len(mine) < len(labels)
    assert set(labels.tolist()) == {0, 1}
    assert across == pytest.approx(crossing(similarity, mine))
    n = len(similarity)
    parts = (p for size in range(1, n) for p in itertools.combinations(range(n), size))
    assert across == pytest.approx(min(crossing(similarity, p) for p in parts))


def test_complete_linkage_gives_more_even_parts() -> None:
    """Angles 0, 20, 40, 70: single splits at the widest gap, 70 off; complete joins 40-70 before 0-40."""
    turn = torch.deg2rad(torch.tensor([0.0, 20.0, 40.0, 70.0]))
    similarity = cosines(torch.stack([turn.cos(), turn.sin()], 1))
    assert bipartition(similarity)[0].tolist() == [0, 0, 0, 1]
    assert bipartition(similarity, "complete")[0].tolist() == [0, 0, 1, 1]


def test_split_all_goes_on_until_everyone_is_alike() -> None:
    turn = torch.deg2rad(torch.tensor([0.0, 180.0, 10.0, 90.0, 190.0, 95.0]))
    similarity = cosines(torch.stack([turn.cos(), turn.sin()], 1))
    assert split_all(similarity, 0.9).tolist() == [0, 1, 0, 2, 1, 2]
    assert split_all(similarity, 0.5).tolist() == [0, 1, 0, 2, 1, 2]
    # The largest cosine across {0, 10 | 90, 95, 180, 190} is cos 80 = 0.17; -0.5 splits nothing, 0.999 everything.
    assert split_all(similarity, -0.5).tolist() == [0] * 6
    assert split_all(similarity, 0.999).tolist() == [0, 1, 2, 3, 4, 5]
    assert split_all(torch.ones(1, 1), 0.5).tolist() == [0]


def test_greedy_merge_follows_chains() -> None:
    """0-2 and 2-4 are alike, 0-4 are not; 1-3 are alike at the very threshold, which is not above it."""
    similarity = torch.eye(5)
    for i, j, s in ((0, 2, 0.8), (2, 4, 0.7), (0, 4, 0.1), (1, 3, 0.5)):
        similarity[i, j] = similarity[j, i] = s
    assert greedy_merge(similarity, 0.5).tolist() == [0, 1, 0, 2, 0]
    assert greedy_merge(similarity, 0.49).tolist() == [0, 1, 0, 1, 0]
    assert greedy_merge(similarity, 0.75).tolist() == [0, 1, 0, 2, 3]
