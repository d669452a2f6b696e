"""Cosines, distances and FedGroup's features, against small examples and slower ways to compute them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clustering.similarity import cosines, distances, edc_features, in_row_space, madc


def points(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


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


@pytest.mark.parametrize("seed", range(5))
def test_edc_finds_nothing_in_rounding_errors(seed: int) -> None:
    """Multiples of one update have one direction: they do not differ in a second one."""
    updates = torch.tensor([[1.0], [2.0], [-3.0], [0.5]], dtype=torch.float64) * points(1, 300, seed)
    found = edc_features(updates, 3)
    assert found[:, 0].abs().tolist() == [1, 1, 1, 1]
    assert found[:, 1:].tolist() == [[0, 0]] * 4


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


def test_coordinates_in_the_row_space_keep_all_distances() -> None:
    x = points(7, 500) * 3 + 100
    flat = in_row_space(x)
    assert flat.shape == (7, 7)
    torch.testing.assert_close(torch.cdist(flat, flat), torch.cdist(x, x), rtol=1e-8, atol=1e-6)
    low = points(7, 3)
    assert torch.equal(in_row_space(low), low)
