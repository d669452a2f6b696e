"""Data for the try-out: every client has digits of its own, and every second client sees them upside down."""

from __future__ import annotations

from torch import Tensor

from coterie.data import Digits


def share(client: int, clients: int) -> tuple[Tensor, Tensor]:
    """The samples of one client; no two clients have a sample in common."""
    digits = Digits()()
    x, y = digits.x[client::clients] / 16, digits.y[client::clients]
    return (x.flip(-1, -2) if client % 2 else x), y
