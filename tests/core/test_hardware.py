"""How a process that computes is set up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")

LOOK = """
import torch
from coterie.core.allocation.heap import keep_memory
if "keep" in {words!r}:
    keep_memory()
block = torch.ones(16 << 20)  # 64 MB
lines = open("/proc/self/smaps_rollup").read().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")))
"""


def _huge(words: str) -> int:
    """Kilobytes in large pages of a process that has taken 64 MB."""
    done = subprocess.run([sys.executable, "-c", LOOK.format(words=words)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.exhaustive
@pytest.mark.skipif(
    not HUGE.is_file() or "[madvise]" not in HUGE.read_text(), reason="needs a Linux that gives large pages when asked"
)
def test_large_tensors_lie_in_large_pages() -> None:
    assert _huge("keep") > _huge("") + (32 << 10)
