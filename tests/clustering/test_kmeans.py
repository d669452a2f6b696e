"""k-means on points solved by hand; ties and empty clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clustering.kmeans import CHUNK, centroids, fresh_kmeans, nearest, warm_kmeans


def line(*numbers: float) -> Tensor:
    """Points on a line (n, 1)."""
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def ones(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.float64)


def partition(labels: Tensor) -> set[frozenset[int]]:
    """The clusters as sets of positions, whatever their numbers."""
    return {frozenset(torch.nonzero(labels == k)[:, 0].tolist()) for k in labels.unique().tolist()}


def test_nearest_takes_the_closest_center() -> None:
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    assert nearest(points, torch.tensor([[6.0, 7.0], [0.0, 1.0], [3.0, 3.0]])).tolist() == [1, 2, 0]


@pytest.mark.parametrize("wide", [3, CHUNK // 2, CHUNK + 1])
@pytest.mark.parametrize("turned", [False, True])
def test_points_compared_piece_by_piece_get_the_same_centers(wide: int, turned: bool) -> None:
    """As many points as make several pieces, the last of them short; all distances computed at once say the same."""
    many = 3 * max(1, CHUNK // wide) + 1
    generator = torch.Generator().manual_seed(0)
    points, centers = torch.randn(many, wide, generator=generator), torch.randn(3, wide, generator=generator)
    points = points.T.contiguous().T if turned else points
    at_once = (points[:, None] - centers).square().sum(2)
    assert torch.equal(nearest(points, centers), at_once.argmin(1))


@pytest.mark.parametrize("centers", [(0.0, 2.0), (2.0, 0.0), (1.0, 1.0)])
def test_the_lowest_index_wins_a_tie(centers: tuple[float, float]) -> None:
    assert nearest(line(1.0), line(*centers)).tolist() == [0]


def test_close_centers_far_from_the_origin_are_told_apart() -> None:
    """Around 4096 a float32 knows steps of 1/2048; |p|^2 - 2 p.c + |c|^2 around 2^24 would know steps of 1 or 2."""
    assert nearest(line(4096.0, 4096.25), line(4096.25, 4096.0)).tolist() == [1, 0]


def test_warm_kmeans_on_four_points() -> None:
    """0, 1 | 4, 9 from centers 0 and 9: 4 goes to 0 first (|4| < |5|), the means are 5/3 and 9, and it stays.

    From centers 3 and 4: first 0, 1 | 4, 9 with means 0.5 and 6.5; 4 is nearer to 6.5 (2.5 < 3.5), and it stays.
    """
    points = line(0, 1, 4, 9)
    assert warm_kmeans(points, line(0, 9), ones(4)).tolist() == [0, 0, 0, 1]
    assert warm_kmeans(points, line(3, 4), ones(4)).tolist() == [0, 0, 1, 1]


def test_warm_kmeans_goes_on_until_nothing_moves() -> None:
    """0, 1, 2, 6 from centers 0 and 1: first 0 | 1, 2, 6 (means 0 and 3); 1 moves (means 0.5 and 4); only then does
    2 move (1.5 < 2; means 1 and 6), and nothing more."""
    points, centers = line(0, 1, 2, 6), line(0, 1)
    assert warm_kmeans(points, centers, ones(4), max_iter=0).tolist() == [0, 1, 1, 1]
    assert warm_kmeans(points, centers, ones(4), max_iter=1).tolist() == [0, 0, 1, 1]
    assert warm_kmeans(points, centers, ones(4)).tolist() == [0, 0, 0, 1]


def test_weights_decide_warm_kmeans() -> None:
    """0, 4, 6.5 from centers 1 and 7.5: first 0, 4 | 6.5 (4 is 3 from 1, 3.5 from 7.5).

    Alike: means 2 and 6.5; 4 stays left (2 < 2.5). With 0 weighing 9: means 0.4 and 6.5; 4 goes right (2.5 < 3.6).
    """
    points = line(0, 4, 6.5)
    assert warm_kmeans(points, line(1, 7.5), ones(3)).tolist() == [0, 0, 1]
    assert warm_kmeans(points, line(1, 7.5), torch.tensor([9.0, 1.0, 1.0])).tolist() == [0, 1, 1]


def test_an_empty_center_stays_where_it_is() -> None:
    """Centers 5, 100, 8 and points 0, 7, 9: nobody is near 100, which keeps its number to itself."""
    points, centers = line(0, 7, 9), line(5, 100, 8)
    labels = warm_kmeans(points, centers, ones(3))
    assert labels.tolist() == [0, 2, 2]
    assert centroids(points, labels, ones(3), centers).tolist() == [[0.0], [100.0], [8.0]]


def test_weighted_centroids_by_hand() -> None:
    """(1*0 + 3*4) / 4 = 3 and 10 alone."""
    out = centroids(line(0, 4, 10), torch.tensor([1, 1, 0]), torch.tensor([1.0, 3.0, 2.0]), line(-1, -2))
    assert out.tolist() == [[10.0], [3.0]]


def test_fresh_kmeans_finds_separated_groups() -> None:
    points = line(0, 100, 1, 101, 50)
    labels = fresh_kmeans(points, 3, ones(5), np.random.default_rng(0))
    assert labels.dtype == torch.int64
    assert partition(labels) == {frozenset({0, 2}), frozenset({1, 3}), frozenset({4})}


def test_weights_decide_fresh_kmeans() -> None:
    """Points 0, 1, 10 in two groups. Alike: {0, 1} costs 1/2, {1, 10} costs 81/2. With 10 weighing next to nothing
    {1, 10} costs 81 * 0.0001 / 1.0001 < 0.01."""
    points, rng = line(0, 1, 10), np.random.default_rng(0)
    assert partition(fresh_kmeans(points, 2, ones(3), rng)) == {frozenset({0, 1}), frozenset({2})}
    light = torch.tensor([1.0, 1.0, 0.0001], dtype=torch.float64)
    assert partition(fresh_kmeans(points, 2, light, rng)) == {frozenset({0}), frozenset({1, 2})}


def test_fewer_points_than_clusters_are_a_cluster_each() -> None:
    labels = fresh_kmeans(line(3, 8), 5, ones(2), np.random.default_rng(0))
    assert sorted(labels.tolist()) == [0, 1]


def test_equal_points_share_a_cluster() -> None:
    labels = fresh_kmeans(line(2, 2, 2, 7), 3, ones(4), np.random.default_rng(0))
    assert partition(labels) == {frozenset({0, 1, 2}), frozenset({3})}
    assert int(labels.min()) >= 0
    assert int(labels.max()) < 3


def test_fresh_kmeans_repeats_itself_for_the_same_generator() -> None:
    points = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    labels = [fresh_kmeans(points, 5, ones(40), np.random.default_rng(seed), n_init=1) for seed in (1, 1, 2)]
    assert labels[0].tolist() == labels[1].tolist()
    assert labels[0].tolist() != labels[2].tolist()
