"""Averages of models: by hand, and what must hold of any of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import vector
from coterie.clustering.averaging import Weighting, mean, mean_by, weigh
from coterie.core.tasks import Fitted

KEPT = torch.tensor([[-1.0, -1.0], [-2.0, -2.0], [-3.0, -3.0]])


def test_mean_by_hand() -> None:
    """(1 * [0, 4] + 3 * [4, 8]) / 4 = [3, 7]."""
    theta = torch.tensor([[0.0, 4.0], [4.0, 8.0]])
    assert mean(theta, torch.tensor([1, 3]), empty=vector(9, 9)).tolist() == [3.0, 7.0]


def test_mean_by_cluster_by_hand() -> None:
    """Cluster 0: (2*[1,1] + 6*[5,9]) / 8 = [4, 7]. Cluster 2: the one client's own. Nobody is in cluster 1."""
    theta = torch.tensor([[1.0, 1.0], [7.0, 8.0], [5.0, 9.0]])
    out = mean_by(torch.tensor([0, 2, 0]), theta, torch.tensor([2, 5, 6]), empty=KEPT)
    assert out.tolist() == [[4.0, 7.0], [-2.0, -2.0], [7.0, 8.0]]


def test_a_cluster_whose_clients_weigh_nothing_keeps_its_model() -> None:
    out = mean_by(torch.tensor([0, 1]), torch.ones(2, 2), torch.tensor([0.0, 1.0]), empty=KEPT)
    assert out.tolist() == [[-1.0, -1.0], [1.0, 1.0], [-3.0, -3.0]]


@pytest.mark.parametrize("theta", [None, torch.empty(0, 2)])
def test_when_nobody_answered_everything_stays(theta: Tensor | None) -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    assert mean_by(nothing, theta, nothing, empty=KEPT).tolist() == KEPT.tolist()
    assert mean(theta, nothing, empty=KEPT[1]).tolist() == [-2.0, -2.0]


@pytest.mark.parametrize(("how", "expected"), [("size", [3.0, 1.0]), ("equal", [1.0, 1.0])])
def test_clients_weigh_by_size_or_alike(how: Weighting, expected: list[float]) -> None:
    reply = Fitted(torch.tensor([4, 8]), torch.tensor([3, 1]), torch.zeros(2))
    assert weigh(reply, how).tolist() == expected


def test_the_mean_of_single_precision_models_is_single_precision() -> None:
    assert mean(torch.ones(2, 3), torch.tensor([1, 2]), empty=torch.zeros(3)).dtype == torch.float32


Cohort = tuple[Tensor, Tensor, Tensor]


@st.composite
def cohorts(draw: st.DrawFn) -> Cohort:
    """Labels among three clusters, models of two numbers, positive weights."""
    n = draw(st.integers(1, 8))
    labels = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    numbers = draw(st.lists(st.floats(-10, 10, width=32), min_size=2 * n, max_size=2 * n))
    weights = draw(st.lists(st.floats(0.1, 100), min_size=n, max_size=n))
    return torch.tensor(labels), torch.tensor(numbers).view(n, 2), torch.tensor(weights, dtype=torch.float64)


@given(cohorts())
def test_a_mean_lies_between_its_members(cohort: Cohort) -> None:
    labels, theta, weights = cohort
    out = mean_by(labels, theta, weights, empty=KEPT)
    for k in range(3):
        members = theta[labels == k] if bool((labels == k).any()) else KEPT[k : k + 1]
        assert bool((out[k] >= members.amin(0) - 1e-5).all())
        assert bool((out[k] <= members.amax(0) + 1e-5).all())


@given(cohorts(), st.integers(0, 1000))
def test_the_order_of_clients_does_not_matter(cohort: Cohort, seed: int) -> None:
    labels, theta, weights = cohort
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shuffled = mean_by(labels[order], theta[order], weights[order], empty=KEPT)
    torch.testing.assert_close(shuffled, mean_by(labels, theta, weights, empty=KEPT), atol=1e-5, rtol=1e-5)


@given(cohorts(), st.floats(1e-3, 1e3))
def test_the_scale_of_weights_does_not_matter(cohort: Cohort, factor: float) -> None:
    labels, theta, weights = cohort
    scaled = mean_by(labels, theta, weights * factor, empty=KEPT)
    torch.testing.assert_close(scaled, mean_by(labels, theta, weights, empty=KEPT), atol=1e-5, rtol=1e-5)
