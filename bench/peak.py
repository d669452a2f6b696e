"""The machine's single-precision matrix-product peak, by processes of one torch thread each."""

from __future__ import annotations

import subprocess
import sys
import time

import torch

SIZE = 2048
WINDOW = 0.25  # seconds; the best of several counts


def here(seconds: float) -> float:
    """Floating-point operations per second of this process, the best window of `seconds`."""
    torch.set_num_threads(1)
    a, b = torch.rand(SIZE, SIZE), torch.rand(SIZE, SIZE)
    out = torch.mm(a, b)
    print("ready", flush=True)
    sys.stdin.readline()
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < WINDOW:
            torch.mm(a, b, out=out)
            count += 1
        best = max(best, count * 2 * SIZE**3 / (time.perf_counter() - began))
    return best


def measure(processes: int, seconds: float = 2.0) -> float:
    """Operations per second of that many processes together."""
    command = [sys.executable, __file__, str(seconds)]
    pipes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for p in pipes:
        assert p.stdout is not None
        p.stdout.readline()
    for p in pipes:  # all at once
        assert p.stdin is not None
        p.stdin.write("go\n")
        p.stdin.flush()
    return sum(float(p.communicate()[0]) for p in pipes)


if __name__ == "__main__":
    print(here(float(sys.argv[1])))
