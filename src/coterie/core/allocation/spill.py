"""Storage for what thousands of clients keep: memory of its own, and files for what does not fit.

A file has no name from the moment it is mapped, so that it is gone with the last tensor in it, however the
process ends. The system reads and writes it as needed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from coterie.core.errors import CoterieError

SMALL = 1 << 16  # bytes; less than this is not worth a file
LARGE = 1 << 20  # bytes; from this size on a value in memory gets pages of its own (a process can have 65,530 mappings)
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
    if value.nbytes >= LARGE:
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
