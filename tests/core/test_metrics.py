"""Scores against scikit-learn, agreement of clusterings, and means over clients by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, adjusted_rand_score, f1_score, normalized_mutual_info_score
from torch import Tensor

from conftest import vector
from coterie.core.metrics import Ints, agreement, by_client, summarise
from coterie.core.tasks import Evaluated

pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=30)
labellings = st.lists(st.integers(0, 3), min_size=2, max_size=20)


def _scores(truth: Ints, predicted: Ints) -> tuple[float, float]:
    accuracy, macro_f1 = by_client(truth, predicted, np.array([len(truth)]))
    return float(accuracy[0]), float(macro_f1[0])


@given(pairs)
def test_accuracy_and_macro_f1_are_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = np.array(pairs).T
    accuracy, macro_f1 = _scores(truth.copy(), predicted.copy())
    assert accuracy == pytest.approx(accuracy_score(truth, predicted))
    assert macro_f1 == pytest.approx(f1_score(truth, predicted, average="macro", zero_division=0))


def test_macro_f1_by_hand_with_absent_labels() -> None:
    """Labels 0 and 5 occur. 0: one hit of 2 true and 1 predicted, F1 = 2/3; 5: one of 1 and 2, also 2/3."""
    accuracy, macro_f1 = _scores(np.array([0, 0, 5]), np.array([0, 5, 5]))
    assert (accuracy, macro_f1) == pytest.approx((2 / 3, 2 / 3))


@given(labellings, st.permutations(range(4)))
def test_agreement_ignores_the_names_of_clusters(labels: list[int], names: list[int]) -> None:
    found = agreement(np.array(labels), np.array(names)[labels])
    assert (found.ari, found.nmi) == pytest.approx((1.0, 1.0))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=20))
def test_agreement_is_symmetric_and_at_most_one(pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs).T
    there, back = agreement(one, other), agreement(other, one)
    assert (there.ari, there.nmi) == pytest.approx((back.ari, back.nmi))
    assert there.ari <= 1 + 1e-9
    assert -1e-9 <= there.nmi <= 1 + 1e-9


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 5)), min_size=1, max_size=30))
def test_agreement_is_scikit_learns(pairs: list[tuple[int, int]]) -> None:
    one, other = np.array(pairs).T
    found = agreement(one, other)
    assert found.ari == pytest.approx(adjusted_rand_score(one, other), abs=1e-12)
    assert found.nmi == pytest.approx(normalized_mutual_info_score(one, other), abs=1e-12)


def test_agreement_by_hand() -> None:
    """Two pairs cut across: no pair of clients is together in both. Expected index 2*2/6 = 2/3, maximum 2:
    ARI = (0 - 2/3) / (2 - 2/3) = -1/2. Knowing one labelling says nothing of the other: NMI = 0."""
    found = agreement(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))
    assert (found.ari, found.nmi) == pytest.approx((-0.5, 0.0))


def reply(choice: Tensor | None, accuracy: tuple[float, float, float] = (1.0, 0.5, 0.0)) -> Evaluated:
    three = torch.tensor([1, 4, 6])
    return Evaluated(three, three, vector(1, 2, 6), vector(*accuracy), vector(0.9, 0.3, 0.1), choice)


def test_summarise_weighs_clients_by_hand() -> None:
    """Weights 1, 1, 2: loss (1 + 2 + 12) / 4, accuracy (1 + 0.5 + 0) / 4, macro-F1 (0.9 + 0.3 + 0.2) / 4."""
    out = summarise(reply(torch.tensor([3, 0, 3])), torch.tensor([1, 1, 2]), truth=np.array([1, 0, 1]))
    assert out.loss == pytest.approx(3.75)
    assert out.accuracy == pytest.approx(0.375)
    assert out.macro_f1 == pytest.approx(0.35)
    assert (out.clusters, out.sizes) == (2, (1, 2))
    assert (out.ari, out.nmi) == pytest.approx((1.0, 1.0))


def test_a_client_of_no_weight_does_not_count() -> None:
    assert summarise(reply(None), torch.tensor([1.0, 1.0, 0.0]), truth=None).loss == pytest.approx(1.5)


def test_without_choices_everyone_is_in_one_cluster() -> None:
    out = summarise(reply(None), torch.ones(3), truth=np.array([0, 1, 1]))
    assert (out.clusters, out.sizes) == (1, (3,))
    assert out.ari == pytest.approx(0.0)


def test_without_truth_there_is_no_agreement() -> None:
    out = summarise(reply(torch.tensor([0, 1, 2])), torch.ones(3), truth=None)
    assert (out.ari, out.nmi) == (None, None)


def test_regression_has_a_loss_and_no_accuracy() -> None:
    out = summarise(reply(None, accuracy=(torch.nan, torch.nan, torch.nan)), torch.ones(3), truth=None)
    assert out.loss == pytest.approx(3.0)
    assert out.accuracy is None
