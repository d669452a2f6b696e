"""How a run treats its worst-off clients, and whether clients gain by taking part. Every client counts the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

DECILE = 10  # one in so many clients


def worst_decile(scores: ArrayLike, higher_is_better: bool = True) -> float | None:
    """The mean score of the worst tenth of clients, of at least one; None where no client has a score.

    A tenth is rounded up: the worst 2 of 11 to 20 clients. A client without a score (NaN) does not count.
    """
    values: NDArray[np.float64] = np.asarray(scores, dtype=np.float64).ravel()
    values = np.sort(values[~np.isnan(values)])
    many = math.ceil(len(values) / DECILE)
    if not many:
        return None
    return float((values[:many] if higher_is_better else values[-many:]).mean())


@dataclass(frozen=True)
class AgainstLocal:
    """A run beside one in which every client trained alone, client by client."""

    gain: float  # the mean over clients of how much better they fare: in accuracy, or by how much the loss is lower
    worse: float  # the share of the clients that fare worse than alone; equal is not worse
    clients: int  # that both runs have a score of


def against_local(
    scores: Mapping[int, float], alone: Mapping[int, float], higher_is_better: bool = True
) -> AgainstLocal | None:
    """Compare by client id; None where no client has a score in both."""
    shared = [client for client in scores if client in alone]
    apart = np.array([scores[client] - alone[client] for client in shared], dtype=np.float64)
    apart = apart[~np.isnan(apart)] * (1 if higher_is_better else -1)
    if not len(apart):
        return None
    return AgainstLocal(float(apart.mean()), float((apart < 0).mean()), len(apart))
