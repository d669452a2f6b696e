"""Settings of a process's heap."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys


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
