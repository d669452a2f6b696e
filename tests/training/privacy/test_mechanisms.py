"""Clipping, sums and noise, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.sketch import lift, sketch
from coterie.layers.accountant import clipped, clipped_sums, lifted, noise, noisy_sketches

START = torch.tensor([[1.0, 1.0]])


def test_long_updates_are_scaled_and_short_ones_are_kept() -> None:
    found = clipped(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 1.0)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64))


def test_what_is_not_finite_counts_as_nothing() -> None:
    assert clipped(torch.tensor([[math.nan, 1.0], [math.inf, 0.0]]), 1.0).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_sums_per_cluster_are_of_clipped_updates_from_the_clients_own_starts() -> None:
    models = torch.tensor([[4.0, 5.0], [1.3, 1.4], [2.0, 2.0]])  # updates (3, 4) -> (0.6, 0.8), (0.3, 0.4), (0, -2)
    starts = torch.tensor([[1.0, 1.0], [1.0, 1.0], [2.0, 4.0]])
    weights = torch.tensor([10.0, 0.5, 1.0])  # 10 is cut to 1
    sums, counts = clipped_sums(models, starts, torch.tensor([1, 1, 0]), weights, 3, 1.0)
    wanted = torch.tensor([[0.0, -1.0], [0.75, 1.0], [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(sums, wanted, atol=1e-6, rtol=0)
    assert counts.tolist() == [1.0, 1.5, 0.0]


NUMBERS = st.floats(-(2.0**100), 2.0**100, width=32) | st.just(math.nan) | st.just(math.inf)


@given(
    changed=st.lists(NUMBERS, min_size=3, max_size=3),
    weight=NUMBERS,
    label=st.integers(0, 2),
    bound=st.floats(0.01, 100.0),
)
def test_one_client_moves_the_sums_by_no_more_than_the_bound(
    changed: list[float], weight: float, label: int, bound: float
) -> None:
    """Whatever it sends, and wherever it belongs: against the federation without it."""
    models, labels = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 9.0]]), torch.tensor([0, 2])
    start, weights = torch.zeros(1, 3), torch.tensor([1.0, 1.0])
    without = clipped_sums(models, start, labels, weights, 3, bound)
    bad = torch.cat([models, torch.tensor([changed])])
    more = (bad, start, torch.cat([labels, torch.tensor([label])]), torch.cat([weights, torch.tensor([weight])]))
    with_it = clipped_sums(*more, 3, bound)
    assert float((with_it[0] - without[0]).norm()) <= bound * (1 + 1e-9)
    assert float((with_it[1] - without[1]).norm()) <= 1.0


def test_noise_has_its_standard_deviation_and_is_the_same_again() -> None:
    drawn = noise((400, 500), 2.5, 7, 1, 2)
    # 200,000 draws: the standard error of the deviation is 2.5 / sqrt(400,000) = 0.004, that of the mean 0.0056.
    assert float(drawn.std()) == pytest.approx(2.5, abs=0.016)
    assert float(drawn.mean()) == pytest.approx(0.0, abs=0.023)
    assert torch.equal(drawn, noise((400, 500), 2.5, 7, 1, 2))
    for other in (noise((400, 500), 2.5, 8, 1, 2), noise((400, 500), 2.5, 7, 1, 3), noise((400, 500), 2.5, 7, 2, 2)):
        assert abs(float((drawn * other).mean())) < 0.06  # four standard errors of 6.25 / sqrt(200,000)
    assert not noise((3,), 0.0, 7).any()


def test_sketches_are_clipped_after_sketching_and_get_noise() -> None:
    updates = torch.randn(2000, 300, generator=torch.Generator().manual_seed(0)) * 50
    quiet = noisy_sketches(updates, 8, 1.0, 0.0, 3)
    torch.testing.assert_close(quiet.norm(dim=1), torch.ones(2000, dtype=torch.float64))
    loud = noisy_sketches(updates, 8, 1.0, 0.5, 3) - quiet
    assert float(loud.std()) == pytest.approx(0.5, abs=0.012)  # 16,000 draws


def test_lifted_sketches_keep_their_distances() -> None:
    points = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(torch.cdist(lifted(points, 100), lifted(points, 100)), torch.cdist(points, points))
    short = sketch(torch.tensor([[1.0, 2.0]]), 4)
    assert lift(short, 2).tolist() == [[1.0, 2.0]]
