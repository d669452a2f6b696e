"""Epsilon against closed forms and a second accountant (PRV), and the noise that is found for it."""

from __future__ import annotations

import math

import pytest

from coterie.core.errors import CoterieError
from coterie.layers.accountant import (
    Gaussian,
    PoissonGaussian,
    RandomisedResponse,
    epsilon_of,
    noise_for,
    precision_for,
)

DELTA = 1e-5


def gaussian_delta(noise: float, epsilon: float) -> float:
    """The delta of a Gaussian mechanism (Balle and Wang 2018, Theorem 8), worked out with the error function."""

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return phi(0.5 / noise - epsilon * noise) - math.exp(epsilon) * phi(-0.5 / noise - epsilon * noise)


@pytest.mark.parametrize(("noise", "times"), [(0.6, 1), (3.6, 30), (10.0, 7)])
def test_a_gaussian_is_that_of_the_closed_form(noise: float, times: int) -> None:
    found = epsilon_of((Gaussian(noise, times),), DELTA)
    together = noise / math.sqrt(times)
    assert gaussian_delta(together, found) <= DELTA  # never too small
    assert gaussian_delta(together, found - 1e-3) > DELTA  # nor too large by 1e-3


def test_releases_of_different_noise_add_up_by_their_precisions() -> None:
    # 1/4 + 1/4 + 1/2 = 1
    mixed = epsilon_of((Gaussian(2.0, 2), Gaussian(math.sqrt(2))), DELTA)
    assert mixed == pytest.approx(epsilon_of((Gaussian(1.0),), DELTA), abs=1e-3)


@pytest.mark.parametrize(
    ("share", "noise", "times"), [(0.1, 1.0, 30), pytest.param(0.02, 0.8, 100, marks=pytest.mark.exhaustive)]
)
def test_poisson_sampling_agrees_with_the_prv_accountant(share: float, noise: float, times: int) -> None:
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

    mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=share, noise_multiplier=noise)
    second = PRVAccountant(prvs=mechanism, max_self_compositions=times, eps_error=1e-3, delta_error=DELTA / 1000)
    lower, estimate, upper = second.compute_epsilon(delta=DELTA, num_self_compositions=[times])
    found = epsilon_of((PoissonGaussian(share, noise, times),), DELTA)
    assert found == pytest.approx(estimate, abs=1e-3)
    assert lower - 1e-3 <= found <= upper + 1e-3


def test_every_round_counts() -> None:
    """An accountant that forgets the number of steps would give the same for 1 and for 40 rounds."""
    for kind in (
        lambda t: Gaussian(4.0, t),
        lambda t: PoissonGaussian(0.2, 1.0, t),
        lambda t: RandomisedResponse(4, 0.5, t),
    ):
        costs = [epsilon_of((kind(times),), DELTA) for times in (1, 10, 40)]
        assert costs[0] < costs[1] < costs[2]


def test_randomised_response_once_is_its_pure_epsilon() -> None:
    # Of 4 options, the true one has chance 1 - p + p/4, any other p/4: with p = 0.5 the ratio is 5.
    assert epsilon_of((RandomisedResponse(4, 0.5),), 1e-12) == pytest.approx(math.log(5), abs=1e-3)
    # Two answers: all of both true against none, with chance (5/8)^2; at delta 0 the ratio is 25.
    assert epsilon_of((RandomisedResponse(4, 0.5, 2),), 1e-12) == pytest.approx(math.log(25), abs=2e-3)


def test_no_sampling_and_no_noise() -> None:
    assert epsilon_of((), DELTA) == 0.0
    assert epsilon_of((Gaussian(1.0, 0),), DELTA) == 0.0
    assert epsilon_of((Gaussian(0.0),), DELTA) == math.inf
    assert epsilon_of((Gaussian(1.0), RandomisedResponse(3, 0.0)), DELTA) == math.inf
    assert epsilon_of((PoissonGaussian(1.0, 2.0, 5),), DELTA) == pytest.approx(
        epsilon_of((Gaussian(2.0, 5),), DELTA), abs=1e-3
    )


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_noise_that_is_found_costs_epsilon_and_no_less_would_do(epsilon: float) -> None:
    def releases(noise: float) -> tuple[PoissonGaussian, ...]:
        return (PoissonGaussian(0.2, noise, 20),)

    noise = noise_for(epsilon, DELTA, releases)
    assert epsilon_of(releases(noise), DELTA) <= epsilon
    assert epsilon_of(releases(noise * 0.999), DELTA) > epsilon


def test_the_precision_that_may_be_spent_is_that_of_one_gaussian() -> None:
    assert gaussian_delta(precision_for(4.0, DELTA) ** -0.5, 4.0) == pytest.approx(DELTA, rel=0.01)


def test_an_epsilon_out_of_reach_is_refused() -> None:
    with pytest.raises(CoterieError) as error:
        noise_for(1e-9, 1e-30, lambda noise: (Gaussian(noise, 10**9),))
    assert error.value.code == "privacy-impossible"
