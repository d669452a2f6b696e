"""How often somebody may ask: so many times a second, and a few seconds' worth at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

AT_ONCE = 5.0  # seconds' worth
NAMES = 10_000  # that are remembered; the one that was quiet the longest is forgotten first


class Rates:
    """For each name an allowance that fills up by `per_second`."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = per_second, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # the allowance, and when it was worked out

    def take(self, name: str) -> bool:
        """Use one of a name's allowance; False if there is none left."""
        left = self._now(name)
        self._left[name] = (max(left - 1, 0.0), self._clock())
        self._left.move_to_end(name)
        if len(self._left) > NAMES:
            self._left.popitem(last=False)
        return left >= 1

    def spent(self, name: str) -> bool:
        """Whether a name has nothing left."""
        return self._now(name) < 1

    def _now(self, name: str) -> float:
        most = max(self._rate * AT_ONCE, 1.0)
        if name not in self._left:
            return most
        left, when = self._left[name]
        return min(most, left + (self._clock() - when) * self._rate)
