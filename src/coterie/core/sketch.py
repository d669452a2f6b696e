"""Sketches: a few numbers in place of a long vector, such that inner products and distances are kept on average.

A count sketch (Charikar et al. 2002): every entry of the vector is added, with a random sign, to one of `size` buckets.
Inner products of sketches are unbiased estimates of those of the vectors. Everyone uses the same buckets and signs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SEED = 20231


@lru_cache(maxsize=8)
def _hash(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng([SEED, length, size])
    buckets = torch.from_numpy(rng.integers(size, size=length, dtype=np.int64))
    signs = torch.from_numpy(rng.integers(2, size=length, dtype=np.int8)).to(torch.float32).mul_(2).sub_(1)
    return buckets.to(device), signs.to(device)


def sketch(vectors: Tensor, size: int) -> Tensor:
    """Sketches (..., size) of vectors (..., P); a vector that is not longer than that is kept, with zeros behind it."""
    if vectors.shape[-1] <= size:
        return torch.nn.functional.pad(vectors, (0, size - vectors.shape[-1]))
    buckets, signs = _hash(vectors.shape[-1], size, vectors.device)
    out = vectors.new_zeros((*vectors.shape[:-1], size))
    return out.index_add_(-1, buckets, vectors * signs)


def lift(sketches: Tensor, length: int) -> Tensor:
    """Vectors (..., length) at the same distances from each other as these sketches (..., size) of such vectors."""
    size = sketches.shape[-1]
    if length <= size:
        return sketches[..., :length]
    buckets, signs = _hash(length, size, sketches.device)
    shares = torch.bincount(buckets, minlength=size).clamp(min=1).to(sketches.dtype).rsqrt()
    return (sketches * shares)[..., buckets] * signs.to(sketches.dtype)
