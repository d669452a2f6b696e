"""Held-out samples that are later than those trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def latest(owner: NDArray[np.int64], time: NDArray[np.float64], clients: int, share: float) -> NDArray[np.bool_]:
    """Which samples are held out: of each client its latest, as many as `held_out` takes; of equal times the last."""
    order = np.lexsort((np.arange(len(owner)), time, owner))
    own = owner[order]
    n = np.bincount(owner, minlength=clients)
    held = many_held(n, share)
    place = np.arange(len(owner)) - (np.cumsum(n) - n)[own]
    mask = np.zeros(len(owner), dtype=bool)
    mask[order] = place >= (n - held)[own]
    return mask


def many_held(n: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """(clients,) how many samples of each are held out; one always stays."""
    return np.minimum(np.round(share * n).astype(np.int64), np.maximum(n - 1, 0))
