"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def short(value: float, digits: int = 4) -> str:
    """With so many decimals if that is readable, else as 1.23e+26 or 1.2e-09."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "-Inf" if value < 0 else "Inf"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits}f}"
    return f"{value:.{max(digits, 1)}g}"


def counted(many: int, what: str) -> str:
    """1 row, 2 rows, 1,000 rows."""
    return f"{many:,} {what}{'s' * (many != 1)}"


def decimals(values: Sequence[float], digits: int = 4) -> int:
    """How many decimals show the smallest of these numbers with so many significant digits."""
    sizes = [abs(value) for value in values if math.isfinite(value) and abs(value) >= 1e-3]
    return max(0, digits - 1 - math.floor(math.log10(min(sizes)))) if sizes else digits


def fixed(value: float, digits: int) -> str:
    """A number with so many decimals, where that is readable; else 1.23e+26 or 1.2e-09."""
    if value and not 0.5 * 10**-digits <= abs(value) < 1e7:
        return f"{value:.3g}" if abs(value) >= 1 else f"{value:.1g}"
    return f"{value:.{digits}f}"


def cell(text: str) -> str:
    """Text for a table that a spreadsheet may open: an apostrophe before what it would compute, =HYPERLINK(...)."""
    risky = text[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{text}" if text and risky and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def listing(items: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else ""
