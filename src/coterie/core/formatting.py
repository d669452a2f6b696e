"""Numbers as people read them."""

from __future__ import annotations

import math


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
