"""Has a client's data changed? Two halves of it then and two halves now answer, each pair from the same model.

a and b are a client's updates on two halves of its data (see `clustering.halves`), a' and b' those of a later round,
from the same model with as many steps; u and u' are what they would be without noise. The noise of a and a' is
independent of that of b and b', so

    <a' - a, b' - b>

is an unbiased estimate of |u' - u|^2, and its mean is 0 where the data stays as it is. It is compared with the noise of
the update on all of a client's data, (a + b) / 2, whose variance (|a - b|^2 + |a' - b'|^2) / 8 estimates: data has
changed that moves the update by more than another sample of the same data would. There is no threshold to be told.

False alarms, if all four halves are fresh samples of the same distribution and the noise is normal with the same
variance in m directions, of 400,000 draws: 32 % (m = 4), 24 % (10), 16 % (20), 6 % (50), 1 % (100). Where the samples
have stayed, a' - a is what the order of training makes of them, and there were none.
"""

from __future__ import annotations

from torch import Tensor


def has_changed(then: Tensor, now: Tensor) -> Tensor:
    """Which of these clients' data has changed (n,), by the updates on both halves (n, 2, d) then and now."""
    return moved_by(then, now) > noise_of(then, now)


def moved_by(then: Tensor, now: Tensor) -> Tensor:
    """An unbiased estimate of how far each client's update has moved, squared (n,); by noise it may be negative."""
    steps = (now - then).double()
    return (steps[:, 0] * steps[:, 1]).sum(1)


def noise_of(then: Tensor, now: Tensor) -> Tensor:
    """The variance of the noise of each client's update, from how far its halves are apart at both times (n,)."""
    then_apart, now_apart = ((pair[:, 0] - pair[:, 1]).double().square().sum(1) for pair in (then, now))
    return (then_apart + now_apart) / 8
