"""What a request may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ApiLimits:
    """Bounds on requests, and on what the service keeps in memory for them."""

    body: int = 10_000_000  # bytes of a request's body
    rows: int = 10_000  # samples of a request
    seconds: float = 30.0  # to receive a body, and again to answer it
    networks: int = 256  # megabytes of networks that are kept ready, of each run
    places: int = 100_000  # clients and clusters whose network is known, of each run
    newcomers: int = 1_000  # kept on request, of each run
