"""Memory optimisations for large models. The sequential engine uses none of those that concern training.

`keep_memory`: a process keeps freed memory instead of returning it to the system. `BufferPool`: the models of a round
reuse the memory of the last round's. `stored`: what a client keeps has pages of its own, or a file if memory is short.

Reasons and measurements: docs/architecture.md, "Memory". Each is measured by bench/allocation.py; one that no longer
pays should be removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import sys
import tempfile
import weakref
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieError


def keep_memory() -> None:
    """Have glibc keep freed memory, and torch use large pages.

    By default glibc returns blocks of about a megabyte to the system and asks for them again, zeroed, at every step.
    Larger tensors, such as all models of a round, torch then allocates in pages of two megabytes instead of four
    kilobytes, each of which the system has to find and zero.
    """
    if sys.platform == "linux":
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it when it first allocates memory of that size
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            for option in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
                libc.mallopt(option, 1 << 30)


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


SMALL = 1 << 16  # bytes; less than this is not worth a file
OWN_PAGES = (
    1 << 20
)  # bytes; from this size on a value in memory gets pages of its own (a process can have 65,530 mappings)
_UNKNOWN = 16 << 30  # bytes, assumed if the memory of the machine is unknown


def room() -> int:
    """Bytes that clients may keep in memory: a quarter of the machine's, or of the container's."""
    found = [_UNKNOWN]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not available on Windows
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(ValueError, OSError):  # the file says "max" where there is no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(found) // 4


def held(value: Tensor | None) -> int:
    """Bytes of memory that this takes: none if it is in a file."""
    return 0 if value is None or value.untyped_storage().filename else value.nbytes


def stored(value: Tensor, left: int) -> Tensor:
    """A value to keep: unchanged if so many bytes of memory are left for it, else in a file."""
    if value.nbytes >= SMALL and value.nbytes > left:
        return on_disk(value)
    if value.nbytes >= OWN_PAGES:
        return in_pages(value)
    # A view of a larger tensor would keep all of it alive.
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def in_pages(value: Tensor) -> Tensor:
    """The same numbers in memory that goes back to the system with the last tensor in it.

    Values that are kept for long between the large tensors of a round fragment the heap: with 900 models of 6.5 MB
    kept, a process grew by 2.4 GB in four rounds, and continued to grow.
    """
    if sys.platform == "linux":
        pages = mmap.mmap(-1, value.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    else:
        pages = mmap.mmap(-1, value.nbytes)
    return torch.frombuffer(pages, dtype=value.dtype).view(value.shape).copy_(value)


def on_disk(value: Tensor) -> Tensor:
    """The same numbers in a file of their own."""
    place = directory()
    try:
        with tempfile.NamedTemporaryFile(prefix="coterie-", dir=place) as file:
            # Reserved in advance: if the disk were full when the values are written, the process would be killed.
            # Not available on macOS.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, value.nbytes)
            else:
                file.truncate(value.nbytes)
            there = torch.from_file(file.name, shared=True, size=value.numel(), dtype=value.dtype)
    except (OSError, RuntimeError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise CoterieError(
            f"{place}: what clients keep is more than a quarter of the memory, and {value.nbytes:,} more bytes of it "
            f"cannot be put there ({said}); set TMPDIR to a directory with room",
            code="disk-write",
        ) from None
    return there.view(value.shape).copy_(value)


def directory() -> Path:
    """TMPDIR if that is set, else where large temporary files belong: /tmp is often memory itself."""
    return Path(os.environ.get("TMPDIR") or ("/var/tmp" if Path("/var/tmp").is_dir() else tempfile.gettempdir()))
