"""How a process that computes is set up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coterie.core.compute import cores

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")

LOOK = """
import torch
from coterie.core.allocation import keep_memory
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


def test_the_environment_may_say_how_many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_CORES", raising=False)
    here = cores()
    monkeypatch.setenv("COTERIE_CORES", "1")
    assert cores() == 1
    for said in ("100000", "0", "", "many"):  # no more than there are, and nothing that is no number
        monkeypatch.setenv("COTERIE_CORES", said)
        assert cores() == here


@pytest.mark.exhaustive
@pytest.mark.skipif(
    not HUGE.is_file() or "[madvise]" not in HUGE.read_text(), reason="needs a Linux that gives large pages when asked"
)
def test_large_tensors_lie_in_large_pages() -> None:
    assert _huge("keep") > _huge("") + (32 << 10)
