"""Minimum sizes and pinned clients, by hand."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.clustering.constraints import at_least, cluster_means, with_pins
from coterie.clustering.kmeans import by_first_member


def line(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


ONES = torch.ones(6)


def test_means_are_weighted() -> None:
    means, total = cluster_means(torch.tensor([0, 0, 1]), line(0, 3, 5), torch.tensor([2, 1, 4]))
    assert means.flatten().tolist() == [1, 5]
    assert total.tolist() == [3, 4]


def test_a_cluster_that_is_too_small_joins_the_cheapest() -> None:
    """{4} costs 1*3/4*(4-1)^2 = 6.75 with {0,1,2}, and 1*2/3*(4-7.5)^2 = 8.2 with {7,8}, though 4 to 7 is no longer."""
    points, labels = line(0, 1, 2, 4, 7, 8), torch.tensor([0, 0, 0, 1, 2, 2])
    assert at_least(labels, points, ONES, 1).tolist() == labels.tolist()
    assert at_least(labels, points, ONES, 2).tolist() == [0, 0, 0, 0, 1, 1]
    assert at_least(labels, points, ONES, 3).tolist() == [0, 0, 0, 0, 0, 0]
    heavy = torch.tensor([9.0, 9, 9, 1, 0.5, 0.5])  # 27/28*9 = 8.7 against 1/2*12.25 = 6.1
    assert at_least(labels, points, heavy, 2).tolist() == [0, 0, 0, 1, 1, 1]


def test_an_exempt_cluster_stays_small_and_may_be_joined() -> None:
    points, labels = line(0, 1, 2, 4, 7, 8), torch.tensor([0, 0, 0, 1, 2, 2])
    exempt = torch.tensor([False, False, False, True, False, False])
    assert at_least(labels, points, ONES, 3, exempt).tolist() == [0, 0, 0, 1, 1, 1]


def test_clients_of_one_pin_are_together_and_of_two_apart() -> None:
    points, labels = line(0, 1, 2, 4, 7, 8), torch.tensor([0, 0, 0, 1, 1, 1])
    assert with_pins(labels, points, ONES, torch.tensor([0, -1, -1, -1, -1, 0])).tolist() == [0, 0, 0, 1, 1, 0]
    apart = with_pins(labels, points, ONES, torch.tensor([5, 5, -1, -1, -1, -1]))
    assert apart.tolist() == labels.tolist()
    # Both pins are at home in the first cluster, so it becomes two: the free client 2 is nearer to client 1's.
    assert with_pins(labels, points, ONES, torch.tensor([5, 3, -1, -1, -1, -1])).tolist() == [0, 1, 1, 2, 2, 2]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2), st.floats(-5, 5)), min_size=1, max_size=12))
def test_pins_hold_and_nobody_is_lost(rows: list[tuple[int, int, float]]) -> None:
    labels = by_first_member(torch.tensor([label for label, _, _ in rows]))
    pins, points = torch.tensor([pin for _, pin, _ in rows]), line(*(x for _, _, x in rows))
    found = with_pins(labels, points, torch.ones(len(rows)), pins)
    assert found.unique().tolist() == list(range(int(found.max()) + 1))
    pinned = pins >= 0
    same_pin = pins[pinned][:, None] == pins[pinned][None]
    assert torch.equal(found[pinned][:, None] == found[pinned][None], same_pin)
    kept = at_least(found, points, torch.ones(len(rows)), 3, pinned)
    assert torch.equal(kept[pinned][:, None] == kept[pinned][None], same_pin)
    small = torch.bincount(kept) < 3
    assert not small[[k for k in range(len(small)) if not bool(pinned[kept == k].any())]].any() or len(small) == 1
