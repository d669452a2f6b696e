"""What a process computes with: one thread, and the cores it may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CORES = "COTERIE_CORES"  # in the environment: the most cores that a run may use


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread for the time being: many small clients do not profit from more, and bits stay the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def cores() -> int:
    """The processor cores this process may use; fewer where the environment says so (COTERIE_CORES)."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    said = os.environ.get(CORES, "")
    return min(found, int(said)) if said.isdecimal() and int(said) else found
