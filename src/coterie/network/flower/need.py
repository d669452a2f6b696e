"""Where Flower is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from coterie.core.errors import CoterieError


def require_flower(what: str) -> None:
    """Say how to install it."""
    if find_spec("flwr") is None:
        raise CoterieError(f"{what} needs Flower: pip install 'coterie[flower]'", code="extra-missing")
