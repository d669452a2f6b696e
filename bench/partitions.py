"""Seconds and peak memory of partitions: 10,000,000 samples of 4x4 bytes to a million clients.

Each runs in a process of its own. "before" is what that process had at its peak when the data set was made (160 MB of
images, 80 MB of labels, and the libraries), "peak" what it had at the end: the difference is the partition's. The last
lines deal with fewer clients, to show how it grows.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch

from coterie.core.registry import NO_CODE, PARTITIONS
from coterie.data.dataset import Dataset
from coterie.data.scale import Scale

SAMPLES, CLIENTS, CLASSES = 10_000_000, 1_000_000, 10
FEWER = ("cluster-dirichlet", (10**3, 10**4, 10**5))
PARAMS: dict[str, dict[str, Any]] = {
    "iid": {},
    "dirichlet": {"alpha": 1.0, "at_least": 1},
    "cluster-dirichlet": {"at_least": 1},
    "cluster-classes": {},
    "power-law": {"first": 1},
    "rotated": {},
}


def peak() -> float:
    """The largest resident size of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(name: str, clients: int) -> dict[str, Any]:
    """Partition once here, and say what it took and what came out."""
    y = torch.from_numpy(np.random.default_rng(0).integers(0, CLASSES, SAMPLES))
    data = Dataset("bytes", torch.zeros(SAMPLES, 1, 4, 4, dtype=torch.uint8), y, CLASSES, Scale(255.0))
    data.x.fill_(1)  # zeros are not resident before they are written
    partition = PARTITIONS.build(name, {"clients": clients} | PARAMS[name], NO_CODE)
    before, start = peak(), time.perf_counter()
    made = partition(data, np.random.default_rng(1))
    seconds = time.perf_counter() - start
    used = len(made.train.numbers) + len(made.test.numbers)
    assert len(made) == clients
    assert int(made.train.lengths.min()) >= 1
    return {"seconds": seconds, "before": before, "peak": peak(), "used": used}


def main() -> None:
    """One line per partition."""
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
        return
    print(f"{SAMPLES:,} samples of 4x4 bytes, {CLASSES} classes")
    print(f"{'partition':18} {'clients':>10} {'seconds':>8} {'before GB':>10} {'peak GB':>8} {'samples used':>13}")
    failed = False
    for name, clients in [*((name, CLIENTS) for name in PARAMS), *((FEWER[0], n) for n in FEWER[1])]:
        done = subprocess.run(
            [sys.executable, __file__, name, str(clients)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            print(f"{name:18} {clients:10,} FAILED: {last}", flush=True)
            failed = True
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{name:18} {clients:10,} {found['seconds']:8.1f} {found['before']:10.2f} {found['peak']:8.2f} "
            f"{found['used']:13,}",
            flush=True,
        )
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
