"""Halves with more clients than a tree is built of: a few new ones join the clusters that are there."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.halves import MOST
from coterie.core.tables import ByClient
from coterie.methods.halves import Halved


def known(many: int) -> Halved:
    """So many clients, ids 0, 2, 4, ...: the first half looks like (0, 0), the others like (10, 0)."""
    ids = 2 * torch.arange(many)
    labels = (torch.arange(many) >= many // 2).long()
    points = torch.stack([10.0 * labels, torch.zeros(many)], 1)
    state = Halved.begin(torch.zeros(2), torch.arange(2), 2, 10.0)
    return dataclasses.replace(
        state,
        centers=torch.tensor([[1.0, 1.0], [2.0, 2.0]]),
        labels=ByClient(ids, labels),
        group_of=torch.zeros(2, dtype=torch.int64),
        looks=ByClient(ids, torch.stack([points, points], 1)),
        samples=ByClient(ids, torch.ones(many, dtype=torch.int64)),
    )


def joined(state: Halved, ids: Tensor, points: Tensor) -> Halved:
    """These clients are in cluster 0, by loss, and were looked at."""
    return dataclasses.replace(
        state,
        labels=state.labels.put(ids, torch.zeros_like(ids)),
        looks=state.looks.put(ids, torch.stack([points, points], 1)),
        samples=state.samples.put(ids, torch.ones_like(ids)),
    )


def test_a_few_among_many_join_the_cluster_that_they_look_like() -> None:
    new = torch.tensor([1, 5, 7])
    state = joined(known(2 * MOST), new, torch.tensor([[9.0, 0.0], [4.0, 0.0], [11.0, 0.0]]))
    assert not state.is_due(0, new)
    placed = state.joined_nearest(0, new, np.random.default_rng(0))
    assert placed.labels.at(new).tolist() == [1, 0, 1]
    others = known(2 * MOST).labels
    assert torch.equal(placed.labels.at(others.ids), others.values)
    assert torch.equal(placed.centers, state.centers)


def test_few_clients_are_divided_anew_with_every_look_and_many_after_a_tenth_more() -> None:
    one = torch.tensor([1])
    assert joined(known(MOST), one, torch.zeros(1, 2)).is_due(0, one)
    assert not joined(known(MOST + 1), one, torch.zeros(1, 2)).is_due(0, one)
    tenth = 1 + 2 * torch.arange(MOST // 10 + 2)
    assert joined(known(MOST + 1), tenth, torch.zeros(len(tenth), 2)).is_due(0, tenth)


def test_who_was_looked_at_again_counts_as_new_and_another_group_does_not_count() -> None:
    state = dataclasses.replace(known(3 * MOST), group_of=torch.tensor([0, 1]))
    assert not state.is_due(0, torch.tensor([0]))
    small = dataclasses.replace(known(MOST), group_of=torch.tensor([0, 1]))
    assert small.is_due(1, torch.tensor([2 * MOST - 2]))
