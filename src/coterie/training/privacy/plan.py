"""How much noise everything that a run releases gets, found once before the first round.

Without amplification, everything that is released of a client is Gaussian, and precisions (1 / noise^2) add up exactly:
the budget is a sum of precisions. A share of it (`privacy.signal`) is for sketches and votes where the method has any.
With Poisson sampling and a method that releases means only, a round is a subsampled Gaussian, and all clients have the
same epsilon. A sketch or a vote of one client shows that it takes part: then no amplification is claimed.

A mean is a noisy sum and a noisy count, of noise multipliers z and 3 z: together they cost what one release of noise
z / sqrt(1 + 1/9) does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import CoterieError
from coterie.core.model import Model
from coterie.methods.contract import Releases
from coterie.training.privacy.accountant import (
    Gaussian,
    PoissonGaussian,
    Release,
    epsilon_of,
    noise_for,
    precision_for,
    require_accounting,
)
from coterie.training.privacy.declarations import declared
from coterie.training.privacy.settings import Privacy
from coterie.training.settings import Settings

COUNTS = 3.0  # how much noisier the count of a cluster is than its sum, in units of their sensitivities


@dataclass(frozen=True)
class PrivacyPlan:
    """What a run releases, and how noisy. `noise` is the multiplier of a mean (sum and count together)."""

    settings: Privacy
    releases: Releases
    rounds: int
    most_signals: int  # how often a client's sketch or vote may be used
    noise: float
    signal_noise: float  # of a sketch or a vote; 0 where there is none, or no noise
    share: float | None  # of Poisson sampling, where amplification holds
    key: int  # what cohorts are drawn from, and in a simulation noise
    simulated: bool = True  # with real clients, noise is the operating system's

    @property
    def sum_noise(self) -> float:
        """The noise multiplier of a cluster's sum of updates."""
        return self.noise * math.sqrt(1 + COUNTS**-2)

    @property
    def count_noise(self) -> float:
        """The noise multiplier, and standard deviation, of a cluster's count."""
        return COUNTS * self.sum_noise

    @property
    def noise_key(self) -> int | None:
        """See `mechanisms.noise`."""
        return self.key if self.simulated else None

    @property
    def amplified(self) -> bool:
        """Whether unseen sampling counts in the clients' favour."""
        return self.share is not None

    def amplified_epsilon(self, attempts: int) -> float:
        """Of every client after so many rounds, repeated ones included."""
        assert self.share is not None
        return epsilon_of(_sampled(self.share, self.noise, self.releases.means, attempts), self.settings.delta)

    def epsilon(self, rounds: int, signals: int) -> float:
        """Of a client that answered in so many rounds and signalled so often, without amplification."""
        means, other = Gaussian(self.noise, rounds * self.releases.means), Gaussian(self.signal_noise, signals)
        return epsilon_of((means, other), self.settings.delta)


def _sampled(share: float, noise: float, means: int, times: int) -> tuple[Release, ...]:
    """Several means of a round are of the same cohort: one Gaussian, subsampled once."""
    return (PoissonGaussian(share, noise / math.sqrt(means), times),)


def plan(method: Any, model: Model, settings: Settings, key: int, *, simulated: bool = True) -> PrivacyPlan | None:
    """The plan of a run, or None where it has no privacy; an error where the assumptions do not hold.

    key: what noise is drawn from. simulated: whether all clients are there from the first round on, and noise is drawn
    from the key; with real clients only cohorts are.
    """
    if settings.privacy is None:
        return None
    found = budget(method, settings, key, simulated=simulated)
    if model.size != model.parameters:
        raise CoterieError(
            "privacy: the network keeps running statistics (batch normalisation), which noise would ruin; "
            "use a network without them",
            code="privacy-model",
        )
    return found


def budget(method: Any, settings: Settings, key: int, *, simulated: bool) -> PrivacyPlan:
    """The plan of a run with privacy whatever its network is."""
    asked = settings.privacy
    assert asked is not None
    require_accounting()
    releases = declared(method)
    share = None
    if settings.sampling == "poisson" and not releases.any_signal:
        share = float(settings.participation)
    everyone = simulated and settings.participation == 1.0 and not settings.dropout
    signals = releases.signals(settings.rounds, everyone) if releases.any_signal else 0
    noise, signal_noise = _noises(asked, releases, settings.rounds, signals, share)
    return PrivacyPlan(asked, releases, settings.rounds, signals, noise, signal_noise, share, key, simulated)


def _noises(asked: Privacy, releases: Releases, rounds: int, signals: int, share: float | None) -> tuple[float, float]:
    """The noise multipliers of means and of signals."""
    if asked.epsilon is None:  # a signal is as noisy as if the shares of the budget were kept to
        noise = float(asked.noise or 0.0)
        ratio = signals * (1 - asked.signal) / (rounds * releases.means * asked.signal)
        return noise, noise * math.sqrt(ratio) if signals else 0.0
    if share is not None:
        return noise_for(asked.epsilon, asked.delta, lambda noise: _sampled(share, noise, releases.means, rounds)), 0.0
    budget = precision_for(asked.epsilon, asked.delta)
    for_signals = asked.signal * budget if signals else 0.0
    noise = math.sqrt(rounds * releases.means / (budget - for_signals))
    return noise, math.sqrt(signals / for_signals) if signals else 0.0
