"""The format of a line of rounds.jsonl, and what older lines mean today.

Format 1 (lines without a "format") held the square of clusterability B. Its root is the value of today, so that older
runs are shown, compared and resumed together with new ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from coterie.core.tables import Counted

FORMAT = 2


def clusterability(line: Mapping[str, Any]) -> Any:
    """B as WeCFL defines it, whenever the line was written; what is not a number comes back as it is."""
    value: Any = line.get("clusterability")
    if line.get("format", 1) != 1 or isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return value
    return math.sqrt(value)


def counted(line: Mapping[str, Any]) -> tuple[Counted, ...]:
    """How a rule chose the number of clusters in this round, each time it did; older lines have the last time alone."""
    found = line.get("counted", [])
    every = [found] if isinstance(found, dict) else found
    return tuple(Counted(**one | {"scores": tuple((k, score) for k, score in one["scores"])}) for one in every)
