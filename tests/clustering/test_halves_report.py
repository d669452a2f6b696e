"""What two halves show beside the number of clusters: by hand, and in simulations with a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clustering.halves import Variances, halves_evidence, heights, margins, resampled, variances, visible, ward

A = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
B = torch.tensor([[1.0], [0.0], [11.0], [10.0]])
EQUAL = torch.ones(4)
LABELS = torch.tensor([0, 0, 1, 1])


def clients(k: int, per: int, apart: float, seed: int, noise: float = 1.0, d: int = 32) -> tuple[Tensor, Tensor]:
    """k groups of clients whose true updates are `apart` from each other, beside what is common, and two halves."""
    rng = np.random.default_rng(seed)
    true = (2.0 + rng.normal(size=(k, d)) * apart)[np.repeat(np.arange(k), per)]
    a, b = (torch.from_numpy(true + noise * rng.normal(size=true.shape)) for _ in range(2))
    return a, b


def test_variances_by_hand() -> None:
    """Both means are 5.5, so 30.25 in common.

    a - 5.5 is -5.5 -4.5 4.5 5.5 and b - 5.5 is -4.5 -5.5 5.5 4.5: every product is 24.75. Within the pairs a - mean is
    -.5 .5 -.5 .5 and b - mean the opposite: -0.25. The halves differ by 1: noise 1/2.
    """
    found = variances(A, B, EQUAL, 2)
    assert (found.common, found.total, found.within, found.noise) == pytest.approx((30.25, 24.75, -0.25, 0.5))
    assert found.share == pytest.approx(24.75 / 25.25)


def test_variances_count_samples() -> None:
    """Clients at 0 (3 samples) and 4 (1): the mean is 1, the variance (3 x 1 + 1 x 9) / 4."""
    points = torch.tensor([[0.0], [4.0]])
    found = variances(points, points, torch.tensor([3, 1]), 1)
    assert (found.common, found.total, found.within, found.noise) == pytest.approx((1, 3, 3, 0))


def test_variances_are_free_of_noise() -> None:
    """Four clusters with a variance of 8 x 3/4 or so in noise of 32: means over 40 simulations are the truth."""
    true, found = [], []
    for seed in range(40):
        a, b = clients(4, 10, 1.0, seed)
        exact, _ = clients(4, 10, 1.0, seed, noise=0.0)
        true.append(float(((exact - exact.mean(0)) ** 2).sum(1).mean()))
        found.append(variances(a, b, torch.ones(40), 4))
    error = np.std([f.total - t for f, t in zip(found, true, strict=True)]) / math.sqrt(40)
    assert abs(np.mean([f.total for f in found]) - np.mean(true)) < 3 * error
    assert np.mean([f.noise for f in found]) == pytest.approx(32, rel=0.03)
    assert abs(np.mean([f.within for f in found])) < 0.5  # all differences are between the clusters


def test_expected_errors_by_hand() -> None:
    """The noise of all samples is half of that of one half: 2. One: 6 + 2/10. Clusters: 1 + 2 x 2/10."""
    found = Variances(common=0, total=6, within=1, noise=4, clients=10, k=2).errors
    assert (found.one, found.clusters, found.local) == pytest.approx((6.2, 1.4, 2))
    assert found.personal == pytest.approx(1 / (1 / 1.4 + 1 / 2))
    nothing = Variances(common=0, total=-1, within=-1, noise=0, clients=10, k=1)
    assert (nothing.errors.one, nothing.errors.personal, nothing.share) == (0, 0, 0)


def test_r2_is_that_of_the_evidence_and_inside_its_interval() -> None:
    a, b = clients(3, 8, 0.6, 1)
    found = resampled(a, b, torch.ones(24), 3, np.random.default_rng(0), 40)
    assert found.r2 == halves_evidence(a, b, torch.ones(24)).r2(3)
    assert found.low < found.r2 < found.high
    assert resampled(A, B, EQUAL, 2, np.random.default_rng(0), 20).r2 == pytest.approx(100 / 101)


@pytest.mark.slow
def test_the_interval_covers_the_mean_r2_of_such_federations() -> None:
    """Two clusters, 50 federations: in 47 of them or so the interval has the mean of the R2 of all."""
    found = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        true = np.where(np.arange(30) % 2, 2.0, -2.0)[:, None] * np.eye(1, 16)
        a, b = (torch.from_numpy(true + rng.normal(size=(30, 16))) for _ in range(2))
        found.append(resampled(a, b, torch.ones(30), 2, rng, 40))
    mean = np.mean([one.r2 for one in found])
    assert sum(one.low <= mean <= one.high for one in found) >= 43


def test_with_many_clients_a_resample_is_small_and_the_interval_is_not_wider() -> None:
    a, b = clients(2, 200, 0.5, 0, d=4)
    few = resampled(a[::4], b[::4], torch.ones(100), 2, np.random.default_rng(0), 20)
    many = resampled(a, b, torch.ones(400), 2, np.random.default_rng(0), 20)
    assert many.high - many.low < few.high - few.low


def test_clear_clusters_are_sure_and_noise_shows_one() -> None:
    a, b = clients(4, 10, 1.5, 0)
    found = resampled(a, b, torch.ones(40), 4, np.random.default_rng(0), 40)
    assert found.counts[0][0] == 4
    assert found.share(4) > 0.9
    a, b = clients(1, 40, 1.0, 0)
    found = resampled(a, b, torch.ones(40), 2, np.random.default_rng(0), 40)
    assert found.counts == ((1, 1.0),)
    assert found.high < 0
    assert found.share(3) == 0


def test_shares_sum_to_one_and_the_most_frequent_is_first() -> None:
    a, b = clients(3, 8, 0.45, 1)
    found = resampled(a, b, torch.ones(24), 3, np.random.default_rng(0), 40).counts
    assert sum(share for _, share in found) == pytest.approx(1)
    assert [share for _, share in found] == sorted((share for _, share in found), reverse=True)


def test_margins_by_hand() -> None:
    """Client 0 has a = 0, b = 1; the other of its cluster a = 1, b = 0; the next cluster's means are 10.5 and 10.5.

    To its own: (0 - 1)(1 - 0) = -1. To the next: (0 - 10.5)(1 - 10.5) = 99.75. The direction is 0.5 - 10.5 = -10, along
    which halves differ by 10 each: noise 100 / 4 = 25, deviation 5. (99.75 + 1) / (2 x 5).
    """
    found = margins(A, B, EQUAL, LABELS)
    assert found.distance[0] == pytest.approx(-1)
    assert found.margin[0] == pytest.approx(100.75 / 10)
    assert found.runner_up.tolist() == [1, 1, 0, 0]


def test_a_client_with_more_samples_has_less_noise() -> None:
    """Its own noise is a quarter of that of clients with a quarter of its samples, its margin twice as large."""
    heavy = margins(A, B, torch.tensor([4.0, 1.0, 1.0, 1.0]), LABELS)
    # The weighted squares (4 + 1 + 1 + 1) x 100 / 4 clients / 4 / 4 samples
    assert heavy.margin[0] == pytest.approx(100.75 / (2 * math.sqrt(7 * 100 / 4 / 4 / 4)))


def test_one_cluster_has_no_runner_up_and_a_client_alone_no_distance() -> None:
    one = margins(A, B, EQUAL, torch.zeros(4, dtype=torch.int64))
    assert one.runner_up.tolist() == [-1] * 4
    assert np.isnan(one.margin).all()
    assert not np.isnan(one.distance).any()
    alone = margins(A, B, EQUAL, torch.tensor([0, 0, 0, 1]))
    assert np.isnan([alone.distance[3], alone.margin[3]]).all()
    assert alone.runner_up.tolist() == [1, 1, 1, -1]


def test_a_client_between_two_clusters_has_no_margin() -> None:
    """It lies halfway, so both are as near; without noise a client elsewhere has an endless margin."""
    points = torch.tensor([[0.0], [0.0], [5.0], [10.0], [10.0]])
    found = margins(points, points, torch.ones(5), torch.tensor([0, 0, 0, 1, 1]))
    assert math.isinf(found.margin[0])
    assert found.distance[2] == 25


def test_heights_by_hand() -> None:
    """The pairs merge at 1 x 1 / 2 x 1 = 0.5 each, the two of them at 2 x 2 / 4 x 10^2."""
    points = (torch.tensor([[0.0], [1.0], [10.0], [11.0]])).double()
    assert heights(ward(points.numpy(), np.ones(4)), points, EQUAL) == pytest.approx((0.5, 0.5, 100))


def test_what_would_be_seen() -> None:
    """Noise of 32 in 32 directions: clusters twice as strong are seen; the truth is that much, too."""
    rng = np.random.default_rng(0)
    a, b = clients(1, 40, 0.0, 0)
    seen = visible(a, b, torch.ones(40), rng)
    assert 32 * 0.05 / 0.95 < seen < 32
    assert visible(a, a, torch.ones(40), rng) == 0  # no noise: everything is seen
    few = visible(a[:3], b[:3], torch.ones(3), rng)
    assert few > seen


@pytest.mark.parametrize("seed", range(3))
def test_clusters_beyond_what_is_visible_are_found(seed: int) -> None:
    a, b = clients(1, 40, 0.0, seed)
    least = visible(a, b, torch.ones(40), np.random.default_rng(seed))
    sides = torch.from_numpy(np.where(np.arange(40) % 2, 1.0, -1.0))[:, None]
    direction = torch.from_numpy(np.random.default_rng(seed).normal(size=32))
    shift = sides * direction / direction.norm() * math.sqrt(1.5 * least)
    assert halves_evidence(a + shift, b + shift, torch.ones(40)).k > 1
    assert halves_evidence(a + 0.2 * shift, b + 0.2 * shift, torch.ones(40)).k == 1
