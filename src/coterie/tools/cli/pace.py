"""How fast rounds go by, and how long the rest will take."""

from __future__ import annotations

import math
import time


class Pace:
    """How fast rounds go by since this was made, and how long the rest will take."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._first, self._done, self._began = total, done, done, time.monotonic()
        self._seconds = 0.0

    def reach(self, done: int) -> None:
        """So many rounds are done now."""
        self._done, self._seconds = done, time.monotonic() - self._began

    def __str__(self) -> str:
        new = self._done - self._first
        if new <= 0 or self._seconds <= 0:
            return ""
        rate = new / self._seconds
        left = max(self._total - self._done, 0) / rate
        speed = f"{rate:.1f} rounds/s" if rate >= 1 else f"{1 / rate:.1f} s/round"
        return f"{speed}, {clock(left)} left" if left else f"{speed}, {clock(self._seconds)}"


def clock(seconds: float) -> str:
    """0:07, 12:30, 1:02:03."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
