"""How a process that computes should be: one thread, and no memory given back between two steps."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread for the time being: many small clients do not profit from more, and bits stay the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def keep_memory() -> None:
    """Have glibc keep what is freed. By default it gives blocks of about a megabyte back to the system and asks for
    them anew, zeroed, at every step: a fifth of the time of a small convolutional network. What is larger than that,
    all the models of a round say, torch takes in pages of two megabytes instead of four kilobytes, each of which the
    system has to find and zero: a round of 480 wide models went from 7.2 to 6.2 s (once, on a busy machine)."""
    if sys.platform == "linux":
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch looks when it first takes memory of that size
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            for option in (-3, -1):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
                libc.mallopt(option, 1 << 30)
