"""Which clients are visited together: chunks of about equal work, the largest clients first."""

from __future__ import annotations

import torch
from torch import Tensor

# For computing together: the same chunks for any number of workers, because what is computed together rounds together.
CHUNKS = 16
CHUNKS_PER_WORKER = 6  # enough that the last chunk is short, few enough that messages cost little


def make_chunks(ids: Tensor, sizes: Tensor, chunks: int) -> list[tuple[int, ...]]:
    """About so many chunks; the last ones are the lightest, so that no worker waits long for another."""
    order = torch.argsort(sizes, descending=True, stable=True)
    share = float(sizes.sum()) / chunks
    found: list[tuple[int, ...]] = []
    chunk: list[int] = []
    work = 0
    for client, size in zip(ids[order].tolist(), sizes[order].tolist(), strict=True):
        chunk.append(client)
        work += size
        if work >= share:
            found.append(tuple(chunk))
            chunk, work = [], 0
    return [*found, tuple(chunk)] if chunk else found
