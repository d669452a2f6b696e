"""Large buffers that are reused: a round trains and gathers as many models as the last one did.

New memory from the system is found, zeroed and mapped page by page, which takes longer than writing the models. In the
allocator's own memory, small objects between the models leave gaps too small for the next ones, so that it grows for
many rounds. A block is free again when the last tensor in it is gone.
"""

from __future__ import annotations

import math
import weakref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGE = 32 << 20  # bytes: all models of a round
MODEL = 1 << 20  # bytes: one wide model. Smaller ones the allocator keeps itself
ALIGNED = 64  # bytes, as torch does: the rounding of products may depend on the alignment


class BufferPool:
    """Allocates tensors in memory that is reused."""

    def __init__(self, least: int = LARGE, device: torch.device | None = None) -> None:
        """device: if it is not the CPU, all is left to torch, which reuses an accelerator's memory itself."""
        self._least = least  # bytes; smaller tensors are left to torch
        self._device = None if device is None or device.type == "cpu" else device
        self._free: list[NDArray[np.uint8]] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of this shape, not initialised."""
        size = math.prod(shape) * dtype.itemsize
        if size < self._least or self._device is not None:
            return torch.empty(shape, dtype=dtype, device=self._device)
        block = self._take(size)
        lent = block[:size]  # an object of its own, which lives as long as any tensor in it
        weakref.finalize(lent, self._free.append, block).atexit = False
        return torch.from_numpy(lent).view(dtype).view(shape)

    def copy(self, value: Tensor) -> Tensor:
        """The same numbers in a block."""
        return self.empty(tuple(value.shape), value.dtype).copy_(value)

    def _take(self, size: int) -> NDArray[np.uint8]:
        """The smallest free block that fits; if there is none, the free ones are released for a new one."""
        fitting = sorted((i for i, block in enumerate(self._free) if size <= len(block) <= 2 * size), key=self._length)
        if fitting:
            return self._free.pop(fitting[0])
        self._free.clear()
        whole = np.empty(size + ALIGNED, dtype=np.uint8)
        start = -whole.ctypes.data % ALIGNED
        return whole[start : start + size]

    def _length(self, place: int) -> int:
        return len(self._free[place])
