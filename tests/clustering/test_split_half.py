"""The cross-validated number of clusters: by hand, against scipy, and in simulations with a known truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.metrics import adjusted_rand_score

from coterie.clustering.halves import Evidence, halves_evidence, labels_of, sample_of, settled, spread, ward

A = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
B = torch.tensor([[1.0], [0.0], [11.0], [10.0]])


def test_risks_by_hand() -> None:
    """Two pairs of clients, ten apart, whose halves differ by one.

    K=4 predicts b_i by a_i: 4 x 1. K=2 by the pair's mean: 4 x 0.25. K=1 by 5.5: 2 x 20.25 + 2 x 30.25. K=3: one pair
    by its mean and two clients by themselves: 0.5 + 2.
    """
    found = halves_evidence(A, B, torch.ones(4))
    assert found.risks.tolist() == pytest.approx([101, 1, 2.5, 4])
    assert (found.best, found.k) == (2, 2)
    assert found.r2(2) == pytest.approx(100 / 101)
    assert found.labels(2).tolist() == [0, 0, 1, 1]


def test_a_client_counts_by_its_samples() -> None:
    """The mean of a is (3 x 0 + 1 x 4) / 4 = 1, so one cluster costs 3 x 1 + 1 x 9."""
    points = torch.tensor([[0.0], [4.0]])
    assert halves_evidence(points, points, torch.tensor([3, 1])).risks.tolist() == pytest.approx([12, 0])


def test_both_directions_count() -> None:
    """From a to b and from b to a the risks of one cluster differ here: (1 + 9) and (4 + 4), whose mean is 9."""
    a, b = torch.tensor([[0.0], [4.0]]), torch.tensor([[1.0], [5.0]])
    forward, backward = (1 - 2) ** 2 + (5 - 2) ** 2, (0 - 3) ** 2 + (4 - 3) ** 2
    assert float(halves_evidence(a, b, torch.ones(2)).risks[0]) == (forward + backward) / 2


def test_one_client() -> None:
    found = halves_evidence(torch.zeros(1, 3), torch.ones(1, 3), torch.ones(1))
    assert (found.k, found.labels(1).tolist()) == (1, [0])


@pytest.mark.parametrize("k", [1, 2, 3, 7, 30])
def test_the_tree_is_wards(k: int) -> None:
    rng = np.random.default_rng(k)
    points = rng.normal(size=(60, 5)) + 3 * np.repeat(rng.normal(size=(3, 5)), 20, axis=0)
    expected = fcluster(linkage(points, "ward"), k, "maxclust")
    assert adjusted_rand_score(expected, labels_of(ward(points, np.ones(60)), k)) == 1


def test_a_weight_of_two_is_a_point_twice() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(12, 3))
    weights = np.array([2.0] * 4 + [1.0] * 8)
    twice = np.concatenate([points, points[:4]])
    for k in (2, 4, 6):
        labels = labels_of(ward(points, weights), k)
        assert adjusted_rand_score(labels, labels_of(ward(twice, np.ones(16)), k)[:12]) == 1


def clients(k: int, per: int, apart: float, seed: int, d: int = 32) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """k groups of clients whose true updates are `apart` noise deviations from each other, and two noisy halves."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(k), per)
    centers = rng.normal(size=(k, d)) * apart
    a, b = (torch.from_numpy(centers[truth] + rng.normal(size=(k * per, d))) for _ in range(2))
    return a, b, truth


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_the_number_of_groups_is_found(k: int) -> None:
    for seed in range(5):
        a, b, truth = clients(k, 10, 1.0, seed)
        found = halves_evidence(a, b, torch.ones(10 * k))
        assert found.k == k
        assert adjusted_rand_score(truth, found.labels(found.k)) == 1 if k > 1 else True


def test_without_groups_one_cluster_however_often_one_looks() -> None:
    found = [halves_evidence(*clients(1, 30, 0.0, seed)[:2], torch.ones(30)).k for seed in range(40)]
    assert found == [1] * 40


def test_where_everyone_differs_nearly_everyone_is_alone() -> None:
    a, b, _ = clients(30, 1, 2.0, 0)
    assert halves_evidence(a, b, torch.ones(30)).k > 25


def test_the_risk_is_unbiased() -> None:
    """Of one cluster it estimates sum_i E|b_i - mean of the a_j|^2 = signal between clients + (n + 1) d noise.

    Halves of the same client may be in it: their noise is independent. Judged on the half that made the cluster, the
    risk of n clusters would be 0.
    """
    n, d, draws = 12, 16, 400
    rng = np.random.default_rng(0)
    means = rng.normal(size=(n, d))
    signal = ((means - means.mean(0)) ** 2).sum()
    risks = []
    for _ in range(draws):
        a, b = (torch.from_numpy(means + rng.normal(size=(n, d))) for _ in range(2))
        risks.append(halves_evidence(a, b, torch.ones(n)).risks.numpy())
    mean = np.mean(risks, axis=0)
    assert mean[0] == pytest.approx(signal + (n + 1) * d, rel=0.02)
    assert mean[-1] == pytest.approx(2 * n * d, rel=0.02)


def evidence(*risks: float, error: float = 1.0) -> Evidence:
    return Evidence(torch.tensor(risks), torch.full((len(risks),), error), ())


def test_the_fewest_clusters_within_a_standard_error() -> None:
    assert (evidence(10, 5.9, 5, 5.5).best, evidence(10, 5.9, 5, 5.5).k) == (3, 2)
    assert evidence(10, 6.1, 5, 5.5).k == 3


def test_it_takes_evidence_to_change() -> None:
    found = evidence(10, 5.5, 5, 5.9)
    assert found.keep_or_change(1) == 2  # one cluster is far worse
    assert found.keep_or_change(3) == 3  # the best stays, though two are supported
    assert found.keep_or_change(4) == 2  # two are better than four, and fewer
    assert evidence(10, 5.9, 5, 5.5).keep_or_change(4) == 4  # fewer, but worse: no merge
    assert found.keep_or_change(9) in (2, 4)  # more clusters than clients that were looked at


def test_large_federations_are_sampled_and_the_rest_joins_the_nearest() -> None:
    rng = np.random.default_rng(0)
    sampled = sample_of(100, rng, most=10)
    assert len(sampled) == 10
    assert sampled.tolist() == sorted(set(sampled.tolist()))
    points = torch.tensor([[0.0], [0.2], [9.0], [9.2], [0.1]])
    chosen = torch.tensor([0, 2])
    assert spread(torch.tensor([0, 1]), chosen, points, torch.ones(5)).tolist() == [0, 0, 1, 1, 0]
    everyone = torch.arange(5)
    assert spread(torch.tensor([0, 0, 1, 1, 0]), everyone, points, torch.ones(5)).tolist() == [0, 0, 1, 1, 0]


def test_a_point_on_the_wrong_side_moves_to_the_nearest_mean() -> None:
    """Means 0.8 (of 0, 0, 0, 0, 4) and 6: 4 is nearer to 6; then they are 0 and 5.5, and nobody moves."""
    points = torch.tensor([[0.0], [0.0], [0.0], [0.0], [4.0], [6.0], [6.0], [6.0]])
    n = torch.ones(8)
    assert settled(torch.tensor([0, 0, 0, 0, 0, 1, 1, 1]), points, n).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    everyone = torch.arange(8)
    assert spread(torch.tensor([0, 0, 0, 0, 0, 1, 1, 1]), everyone, points, n).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert settled(everyone, points[:, :1] + torch.arange(8)[:, None], n).tolist() == everyone.tolist()


def test_a_cluster_that_nobody_would_stay_in_is_kept() -> None:
    """The means are 5 (of 0 and 10), 4.9 and 5.1: nobody is nearest to 5."""
    points, labels = torch.tensor([[0.0], [10.0], [4.9], [5.1]]), torch.tensor([0, 0, 1, 2])
    assert settled(labels, points, torch.ones(4)).tolist() == labels.tolist()
