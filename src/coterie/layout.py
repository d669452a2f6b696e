"""How images lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def channels_last(x: Tensor) -> Tensor:
    """Images (n, c, h, w) as convolutions on a CPU like them; anything else end to end."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.contiguous()
