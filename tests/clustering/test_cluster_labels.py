"""Clusters keep their numbers: by distance to the previous centers, by common members, by first member."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.clustering.kmeans import by_first_member, cheapest_names, match_labels, renumber


def line(*numbers: float) -> Tensor:
    """Points on a line (n, 1)."""
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def ones(n: int) -> Tensor:
    return torch.ones(n, dtype=torch.float64)


@pytest.mark.parametrize("permutation", [(0, 1, 2), (1, 2, 0), (2, 1, 0)])
def test_match_labels_undoes_a_permutation(permutation: tuple[int, int, int]) -> None:
    points, truth, centers = line(0, 1, 10, 11, 20), torch.tensor([0, 0, 1, 1, 2]), line(0, 10, 20)
    switched = torch.tensor(permutation)[truth]
    assert match_labels(points, switched, ones(5), centers).tolist() == truth.tolist()


def test_match_labels_is_one_to_one() -> None:
    """Clusters at 9 and 11 are both nearest to center 10; the total cost decides: 9 -> 0, 11 -> 10 (81 + 1)."""
    assert match_labels(line(9, 11), torch.tensor([0, 1]), ones(2), line(10, 0)).tolist() == [1, 0]


def test_match_labels_weighs_the_clients() -> None:
    """Cluster 0 holds 0 and 10: alike its mean is 5, with 10 weighing 9 it is 9. Cluster 1 is at 6.

    Centers 5 and 8. Alike: 5 -> 5, 6 -> 8 costs 4. Weighted: 9 -> 8, 6 -> 5 costs 2, against 9 -> 5, 6 -> 8: 20.
    """
    points, labels, centers = line(0, 10, 6), torch.tensor([0, 0, 1]), line(5, 8)
    assert match_labels(points, labels, ones(3), centers).tolist() == [0, 0, 1]
    assert match_labels(points, labels, torch.tensor([1.0, 9.0, 1.0]), centers).tolist() == [1, 1, 0]


def test_match_labels_with_fewer_clusters_than_centers() -> None:
    assert match_labels(line(19, 21, 1), torch.tensor([0, 0, 1]), ones(3), line(0, 10, 20)).tolist() == [2, 2, 0]


def test_a_number_nobody_has_takes_no_center_from_a_cluster() -> None:
    """k-means on repeated points may leave a gap in its numbers (here 1); the cluster at 11 belongs to center 10."""
    assert match_labels(line(0, 11), torch.tensor([0, 2]), ones(2), line(0, 10, 50)).tolist() == [0, 1]


def test_half_of_a_cluster_does_not_take_the_number_of_absent_clients() -> None:
    """Centers at 0 and 10. The clients around 0 are found in two parts, at 0 and 1, and the others are not here."""
    points, labels, centers = line(0, 1), torch.tensor([0, 1]), line(0, 10)
    assert match_labels(points, labels, ones(2), centers).tolist() == [0, 1]
    assert match_labels(points, labels, ones(2), centers, absent=torch.tensor([1])).tolist() == [0, 0]
    # A cluster at 9 continues the one at 10, whether its old members are here or not.
    assert match_labels(line(0, 9), labels, ones(2), centers, absent=torch.tensor([1])).tolist() == [0, 1]


def test_clusters_are_numbered_by_their_first_member() -> None:
    assert by_first_member(torch.tensor([7, 3, 7, 0, 3])).tolist() == [0, 1, 0, 2, 1]


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


def test_the_cheapest_names_count_every_member() -> None:
    """Cluster 5 (rows 0, 1) costs 2 + 2 as 0 and 3 + 3 as 2; cluster 9 (row 2) 1 as 0 and 4 as 2. Column 1 is dear.

    So 4 + 4 as 0 and 2, against 6 + 1 as 2 and 0.
    """
    costs = torch.tensor([[2.0, 9.0, 3.0], [2.0, 9.0, 3.0], [1.0, 9.0, 4.0]])
    assert cheapest_names(torch.tensor([5, 5, 9]), costs).tolist() == [2, 2, 0]
    costs[2, 2] = 2.5  # now 4 + 2.5 against 6 + 1; means would say 2 + 2.5 against 3 + 1
    assert cheapest_names(torch.tensor([5, 5, 9]), costs).tolist() == [0, 0, 2]
