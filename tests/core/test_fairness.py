"""The worst tenth of clients, and clients beside what they would be alone, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.core.metrics import AgainstLocal, against_local, summarise, worst_decile
from coterie.core.tasks import Evaluated


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5], 0.5),
        ([0.9, 0.1, 0.8], 0.1),  # less than one client is one client
        (np.arange(10) / 10, 0.0),
        (np.arange(11) / 10, 0.05),  # a tenth of 11 is rounded up to 2
        (np.arange(20)[::-1], 0.5),
        ([math.nan, 0.4, 0.6], 0.4),  # a client without test samples has no score
    ],
)
def test_the_worst_tenth_by_hand(scores: object, expected: float) -> None:
    assert worst_decile(scores) == pytest.approx(expected)  # type: ignore[arg-type]


def test_of_losses_the_largest_are_the_worst() -> None:
    assert worst_decile(list(range(20)), higher_is_better=False) == 18.5


def test_nobody_has_a_score() -> None:
    assert worst_decile([]) is None
    assert worst_decile([math.nan]) is None


def test_against_local_goes_by_id() -> None:
    """Client 7 gains 0.2, client 3 loses 0.1, client 5 is where it was; clients 1 and 9 are in one run only."""
    found = against_local({7: 0.9, 3: 0.5, 5: 0.4, 1: 0.0}, {5: 0.4, 3: 0.6, 7: 0.7, 9: 1.0})
    assert found is not None
    assert (found.gain, found.worse, found.clients) == pytest.approx((0.1 / 3, 1 / 3, 3))


def test_a_lower_loss_is_a_gain() -> None:
    assert against_local({0: 1.0, 1: 5.0}, {0: 4.0, 1: 4.0}, higher_is_better=False) == AgainstLocal(1.0, 0.5, 2)


def test_nobody_to_compare() -> None:
    assert against_local({0: 0.5}, {1: 0.5}) is None
    assert against_local({0: math.nan}, {0: 0.5}) is None


def _reply(n: list[int], loss: list[float], accuracy: list[float]) -> Evaluated:
    many = len(n)
    found = torch.tensor(accuracy)
    return Evaluated(torch.arange(many), torch.tensor(n), torch.tensor(loss), found, found)


def test_the_summary_has_it() -> None:
    """Every client counts the same there, whatever its size; one without samples does not count."""
    reply = _reply([100, 1, 0], [0.1, 2.0, math.nan], [0.9, 0.2, math.nan])
    assert summarise(reply, reply.n.double(), None).worst_decile == pytest.approx(0.2)
    regression = _reply([100, 1, 0], [0.1, 2.0, math.nan], [math.nan] * 3)
    assert summarise(regression, regression.n.double(), None).worst_decile == pytest.approx(2.0)
