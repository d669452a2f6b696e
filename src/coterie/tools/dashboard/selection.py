"""Which runs an address selects: ?run=KEY&run=KEY. Only keys of listed runs count, so no address leads elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qs

MOST = 40  # runs shown together: more curves than this tell nothing
LONGEST = 100_000  # characters of an address that are looked at


@dataclass(frozen=True)
class Selection:
    """What is to be shown, and what was asked for in vain."""

    keys: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    left_out: int = 0  # beyond what is shown together


def select(search: object, known: Collection[str]) -> Selection:
    """The part of an address from the question mark on, against the keys that there are."""
    query = (search if isinstance(search, str) else "")[:LONGEST].removeprefix("?")
    asked = list(dict.fromkeys(parse_qs(query, errors="replace").get("run", [])))
    keys = [key for key in asked if key in known]
    unknown = [key for key in asked if key not in known]
    return Selection(tuple(keys[:MOST]), tuple(unknown), max(0, len(keys) - MOST))
