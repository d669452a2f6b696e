"""Cosines, distances and the clusterings built on them, against small examples and slower ways to compute them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.clustering.algorithms import (
    agglomerate,
    bipartition,
    by_first_member,
    cosines,
    distances,
    edc_features,
    greedy_merge,
    in_row_space,
    madc,
    renumber,
    split_all,
)
from coterie.clustering.cluster_count import choose_k
from coterie.clustering.merging import merge_recomputing


def points(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# ------------------------------------------------------------------------------------------ similarity and distance


def test_cosines_by_hand() -> None:
    found = cosines(torch.tensor([[1.0, 0.0], [3.0, 4.0], [-2.0, 0.0], [0.0, 0.0]]))
    expected = matrix([1, 0.6, -1, 0], [0.6, 1, -0.6, 0], [-1, -0.6, 1, 0], [0, 0, 0, 0])
    torch.testing.assert_close(found, expected)
    others = cosines(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 5.0], [5.0, 0.0]]))
    torch.testing.assert_close(others, matrix([0, 1]))


def test_cosines_stay_within_one_and_need_no_length() -> None:
    found = cosines(points(20, 3).float() * 1e-20)
    assert float(found.abs().max()) <= 1
    torch.testing.assert_close(found.diagonal(), torch.ones(20, dtype=torch.float64))


def test_distances_by_hand() -> None:
    three = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 4.0]])
    torch.testing.assert_close(distances(three, "euclidean"), matrix([0, 5, 4], [5, 0, 3], [4, 3, 0]))
    torch.testing.assert_close(distances(three, "manhattan"), matrix([0, 7, 4], [7, 0, 3], [4, 3, 0]))
    # The zero vector is like nothing: 1 from the others. cos of the others: 16 / 20.
    torch.testing.assert_close(distances(three, "cosine"), matrix([0, 1, 1], [1, 0, 0.2], [1, 0.2, 0]))


@pytest.mark.parametrize(("n", "d", "m"), [(6, 40, 3), (6, 4, 2), (5, 5, 5), (4, 2, 2), (1, 3, 1)])
def test_edc_is_the_cosine_with_singular_directions(n: int, d: int, m: int) -> None:
    x = points(n, d, seed=n)
    _, _, directions = np.linalg.svd(x.numpy(), full_matrices=True)
    unit = x.numpy() / np.linalg.norm(x.numpy(), axis=1, keepdims=True)
    expected = unit @ directions[:m].T
    found = edc_features(x, m).numpy()
    assert found.shape == (n, m)
    signs = np.sign((found * expected).sum(0))  # a direction is known up to its sign
    np.testing.assert_allclose(found * signs, expected, atol=1e-8)


def test_edc_of_more_directions_than_updates_and_of_a_zero_update() -> None:
    x = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    found = edc_features(x, 5)
    assert found.shape == (2, 2)
    torch.testing.assert_close(found, matrix([1, 0], [0, 0]))


def slow_madc(x: Tensor) -> Tensor:
    """Eq. 7, as it is printed."""
    s, n = cosines(x), len(x)
    out = torch.zeros(n, n, dtype=torch.float64)
    for i, j in itertools.permutations(range(n), 2):
        out[i, j] = sum(abs(float(s[i, z] - s[j, z])) for z in range(n) if z not in (i, j)) / (n - 2)
    return out


@pytest.mark.parametrize(("n", "d"), [(3, 2), (5, 8), (9, 3)])
def test_madc_against_a_double_loop(n: int, d: int) -> None:
    x = points(n, d, seed=n)
    torch.testing.assert_close(madc(x), slow_madc(x), rtol=0, atol=1e-9)


def test_madc_where_a_client_has_not_moved() -> None:
    """A zero update has the cosine 0 with everyone, itself too."""
    x = points(5, 3)
    x[2] = 0
    torch.testing.assert_close(madc(x), slow_madc(x), rtol=0, atol=1e-9)


def test_madc_of_two_knows_no_third_to_look_at() -> None:
    assert madc(points(2, 3)).tolist() == [[0, 0], [0, 0]]


# ----------------------------------------------------------------------------------------- clustering by distance

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


def test_clusters_are_numbered_by_their_first_member() -> None:
    assert by_first_member(torch.tensor([7, 3, 7, 0, 3])).tolist() == [0, 1, 0, 2, 1]


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


def test_merging_with_means_taken_anew_stops_a_chain() -> None:
    """Directions of 0, 40 and 81 degrees, tau = cos 45: 0-40 and 40-81 are alike, and the chain takes all.

    Anew: 0-40 first (40 < 41), their sum points to 20 degrees, 61 from the third.
    """
    turn = torch.deg2rad(torch.tensor([0.0, 40.0, 81.0], dtype=torch.float64))
    sums = torch.stack([turn.cos(), turn.sin()], 1)
    tau = float(np.cos(np.deg2rad(45)))
    assert greedy_merge(cosines(sums), tau).tolist() == [0, 0, 0]
    assert merge_recomputing(sums, tau).tolist() == [0, 0, 1]
    # A heavy cluster hardly turns: ten members at 40 and one at 0 point to 36.5, and 81 is 44.5 away.
    heavy = sums * torch.tensor([[1.0], [10.0], [1.0]])
    assert merge_recomputing(heavy, tau).tolist() == [0, 0, 0]
    assert merge_recomputing(sums[:1], tau).tolist() == [0]


def test_merging_anew_begins_with_the_most_alike() -> None:
    """0, 60 and 29 degrees, tau = cos 32: 29 joins 0 before 60, and their sum at 14.5 is 45.5 away from 60."""
    turn = torch.deg2rad(torch.tensor([0.0, 60.0, 29.0], dtype=torch.float64))
    sums = torch.stack([turn.cos(), turn.sin()], 1)
    near = float(np.cos(np.deg2rad(32)))
    assert merge_recomputing(sums, near).tolist() == [0, 1, 0]
    assert greedy_merge(cosines(sums), near).tolist() == [0, 0, 0]


def merged_slowly(sums: torch.Tensor, tau: float) -> list[int]:
    """The pair of largest cosine, one after another, every cosine taken from the vectors themselves."""
    clusters = {i: [i] for i in range(len(sums))}
    vectors = {i: sums[i].double() for i in range(len(sums))}
    while len(clusters) > 1:
        rows = list(clusters)
        alike = cosines(torch.stack([vectors[i] for i in rows])).fill_diagonal_(-torch.inf)
        if float(alike.max()) <= tau and tau > -1:
            break
        i, j = sorted(divmod(int(alike.argmax()), len(rows)))
        i, j = rows[i], rows[j]
        vectors[i] = vectors[i] + vectors.pop(j)
        clusters[i] += clusters.pop(j)
    label = {member: place for place, of in enumerate(sorted(clusters.values(), key=min)) for member in of}
    return [label[i] for i in range(len(sums))]


@pytest.mark.parametrize("tau", [-1.0, -0.3, 0.2, 0.6, 1.0])
def test_merging_anew_against_a_slow_twin(tau: float) -> None:
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        sums = torch.randn(12, 5, generator=draw) + 2 * torch.randn(3, 5, generator=draw).repeat(4, 1)
        assert merge_recomputing(sums, tau).tolist() == merged_slowly(sums, tau)


def test_opposite_ones_that_cancel_out_are_like_nothing() -> None:
    """Merged at tau = -1 only; at -0.5 the sum of the first two would be zero, and they are not alike enough."""
    sums = torch.tensor([[1.0, 3.0], [-1.0, -3.0], [0.1, 0.7]])
    assert merge_recomputing(sums, -1.0).tolist() == [0, 0, 0]
    assert merge_recomputing(torch.zeros(3, 2), 0.0).tolist() == [0, 1, 2]
    assert merge_recomputing(torch.zeros(3, 2), -0.5).tolist() == [0, 0, 0]


# ------------------------------------------------------------------------------------------------------- renumber


def renumbered(labels: list[int], old: list[int], used: list[int], limit: int | None = None) -> list[int]:
    return renumber(torch.tensor(labels), torch.tensor(old), torch.tensor(used, dtype=torch.int64), limit).tolist()


def test_clusters_keep_the_number_they_share_most_members_with() -> None:
    assert renumbered([0, 0, 1, 1, 1], [1, 1, 0, 0, 1], [0, 1]) == [1, 1, 0, 0, 0]
    # One to one: both would like 0; the one with more members of it has it, the other gets a new number.
    assert renumbered([0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [0]) == [1, 1, 0, 0, 0]


def test_numbers_of_absent_clusters_are_not_taken() -> None:
    # Numbers 0, 1, 2 are used; nobody of 1 is here. The cluster without old members is new: 3.
    assert renumbered([0, 1, 2], [2, -1, 0], [0, 1, 2]) == [2, 3, 0]
    # A hole in the numbers is filled first.
    assert renumbered([0, 1, 2], [2, -1, 0], [0, 2]) == [2, 1, 0]


def test_a_limit_takes_an_absent_number_only_when_none_is_left() -> None:
    assert renumbered([0, 1, 2], [2, -1, 0], [0, 2], limit=3) == [2, 1, 0]
    assert renumbered([0, 1, 2], [2, -1, 0], [0, 1, 2], limit=3) == [2, 1, 0]
    assert renumbered([0, 1], [-1, -1], [0, 1], limit=4) == [2, 3]
    assert sorted(renumbered([0, 1], [-1, -1], [0, 1], limit=2)) == [0, 1]


def test_with_no_past_clusters_are_numbered_in_order() -> None:
    assert renumbered([1, 0, 1], [-1, -1, -1], []) == [1, 0, 1]


# --------------------------------------------------------------------------------------------- how many clusters


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


def test_coordinates_in_the_row_space_keep_all_distances() -> None:
    x = points(7, 500) * 3 + 100
    flat = in_row_space(x)
    assert flat.shape == (7, 7)
    torch.testing.assert_close(torch.cdist(flat, flat), torch.cdist(x, x), rtol=1e-8, atol=1e-6)
    low = points(7, 3)
    assert torch.equal(in_row_space(low), low)
