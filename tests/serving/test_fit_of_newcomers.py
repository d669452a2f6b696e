"""None of these: the test that a newcomer's score is put to, with numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coterie.serving.fit_of_newcomers import LEVEL, Yardstick, usual


def test_two_clients_by_hand() -> None:
    """Errors 0 and 0.2: mean 0.1, variance 0.02, times 1 + 1/2 is 0.03. A newcomer that is always wrong in the same
    way, by 0.5: t = 0.4 / sqrt(0.03) with 1 degree of freedom, whose tail is 1/2 - arctan(t) / pi."""
    t = 0.4 / math.sqrt(0.03)
    assert usual(0.5, 0.0, 10, np.array([0.0, 0.2])) == pytest.approx(0.5 - math.atan(t) / math.pi)


def test_few_samples_make_it_less_sure() -> None:
    others = np.array([0.0, 0.1, 0.0, 0.1, 0.0])
    few, many = (usual(0.5, 0.5, n, others) for n in (4, 100))
    assert many < LEVEL < few


def test_all_the_same() -> None:
    others = np.zeros(3)
    assert usual(0.0, 0.0, 5, others) == 1.0  # as good as everyone
    assert usual(1.0, 0.0, 5, others) == 0.0  # always wrong where nobody ever is


def test_what_cannot_be_said() -> None:
    assert math.isnan(usual(0.5, 0.0, 10, np.empty(0)))  # an empty cluster
    assert math.isnan(usual(0.5, 0.0, 1, np.zeros(5)))  # one sample
    assert math.isnan(usual(0.5, 0.0, 10, np.zeros(1)))  # one client, and no other cluster to learn its spread from


def test_one_client_borrows_the_spread_of_other_clusters() -> None:
    """Variance 0.04 with 3 degrees of freedom, times 1 + 1/1; t = 0.4 / sqrt(0.08) = sqrt 2.

    The tail for 3 degrees: 1/2 - (arctan(t / sqrt 3) + (t / sqrt 3) / (1 + t^2 / 3)) / pi.
    """
    t = math.sqrt(2)
    ratio = t / math.sqrt(3)
    tail = 0.5 - (math.atan(ratio) + ratio / (1 + ratio**2)) / math.pi
    assert usual(0.5, 0.0, 10, np.array([0.1]), (0.04, 3)) == pytest.approx(tail)


def test_who_fits_is_seldom_refused() -> None:
    """Scores drawn alike for 12 clients and a newcomer: at most as many false alarms as the level says."""
    rng = np.random.default_rng(0)
    alarms = sum(usual(rng.normal(), 0.0, 50, rng.normal(size=12)) < 0.05 for _ in range(4000))
    assert 0.03 < alarms / 4000 < 0.065


def test_a_guess_is_to_be_beaten_where_clients_have_their_own_models() -> None:
    yardstick = Yardstick({}, None, guess=0.5, level=LEVEL)
    assert yardstick.fits(np.array([0.0, 0.0, 1.0]), 0) is True
    assert yardstick.fits(np.array([1.0, 0.0]), 0) is False  # no better than a guess
    assert yardstick.fits(np.empty(0), 0) is None
    assert yardstick.p_value(np.array([1.0, 0.0]), 0) is None
