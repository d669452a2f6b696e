"""Merging clusters one pair at a time, with the means recomputed, by hand and against a slow version."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.clustering.linkage import greedy_merge
from coterie.clustering.similarity import cosines
from papers.methods.stocfl import merge_recomputing


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
