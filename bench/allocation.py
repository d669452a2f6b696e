"""Do the memory optimisations of `core/allocation` pay? Each is measured on against off, in turns, within one run.

Every measurement is a process of its own, because allocator settings belong to a process. A ratio is the median of
"off" divided by the median of "on": above 1, the optimisation pays. Peak is the largest resident memory.

    python bench/allocation.py [--repeats 3] [--only buffers]
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import nn

import coterie
from coterie import ByClient, Federation, Fit, Local, Model
from coterie.client.contract import Moment
from coterie.core import allocation
from coterie.core.allocation import BufferPool, keep_memory
from coterie.core.tasks import All
from coterie.engines.batched import Batched
from coterie.engines.contract import Engine, Visit
from coterie.engines.sequential import Sequential
from papers.methods.rows import Rows

ROUNDS = 4


def _federation(clients: int, shape: tuple[int, ...], samples: int) -> Federation:
    rng = np.random.default_rng(0)
    return Federation.of(
        [
            (rng.standard_normal((samples, *shape)).astype(np.float32), rng.integers(0, 10, samples))
            for _ in range(clients)
        ]
    )


def _rounds(engine: Engine, model: Model, ids: torch.Tensor, local: Local) -> float:
    theta = model.init(np.random.default_rng(0))
    engine.visit(Visit((Fit(All(theta), local),), ids, Moment(0, 0, 0)))
    began = time.perf_counter()
    for t in range(1, ROUNDS + 1):
        outcome = engine.visit(Visit((Fit(All(theta), local),), ids, Moment(0, t, 0)))
        theta = outcome.replies[0].models.mean(0)  # type: ignore[union-attr]
    return (time.perf_counter() - began) / ROUNDS


def _wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 10))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 10)),
    )


def keep(on: bool) -> float:
    """`heap.keep_memory`: steps of a small convolutional network. Seconds of a round."""
    if on:
        keep_memory()
    model = Model.of(_convolutional)
    federation = _federation(10, (1, 28, 28), 200)
    return _rounds(Sequential(model, federation), model, torch.arange(10), Local(batch=50, lr=0.01))


def _plain_empty(_: BufferPool, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def lend(on: bool) -> float:
    """`BufferPool`: a round of 100 models of 6.5 MB, trained together. Seconds of a round."""
    keep_memory()  # as in every worker process
    if not on:
        BufferPool.empty = _plain_empty  # type: ignore[method-assign, assignment]
    model = Model.of(_wide)
    federation = _federation(100, (784,), 20)
    return _rounds(Batched(model, federation), model, torch.arange(100), Local(batch=20, lr=0.01, momentum=0.5))


def pages(on: bool) -> float:
    """`in_pages`: 80 clients keep personal models of 2.9 MB, 32 of them a round. Seconds of a round, and peak."""
    keep_memory()
    if not on:
        allocation.OWN_PAGES = 1 << 62
    model = Model.of(lambda: nn.Sequential(nn.Linear(784, 900), nn.ReLU(), nn.Linear(900, 10)))
    ditto = coterie.Ditto(lam=0.5, local=Local(epochs=1, batch="full", lr=0.01))
    began = time.perf_counter()
    coterie.run(ditto, _federation(80, (784,), 12), model, rounds=12, participation=0.4, evaluate_every=12)
    return (time.perf_counter() - began) / 12


def rows(on: bool) -> float:
    """`rows`: a table of 300 vectors of 0.4 MB that grows by ten clients at a time. Seconds."""
    values = torch.ones(10, 100_000)
    growing: Rows | ByClient = Rows.empty() if on else ByClient.empty(torch.float32, (100_000,))
    began = time.perf_counter()
    for start in range(0, 300, 10):
        growing = growing.put(torch.arange(start, start + 10), values)
    return time.perf_counter() - began


TRICKS: dict[str, Callable[[bool], float]] = {"keep_memory": keep, "buffers": lend, "in_pages": pages, "rows": rows}


def _measure(name: str, on: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", name, "--on" if on else "--off"]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main(
    repeats: Annotated[int, typer.Option(help="of each measurement, in turns")] = 3,
    only: Annotated[str | None, typer.Option(help="one of the optimisations")] = None,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
    on: Annotated[bool, typer.Option("--on/--off", hidden=True)] = True,
) -> None:
    """One line per optimisation: seconds and peak memory, on and off, and the ratios off / on."""
    if child is not None:
        torch.set_num_threads(1)
        seconds = TRICKS[child](on)
        print(json.dumps({"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
        return
    print(f"{'':12} {'on, s':>8} {'off, s':>8} {'ratio':>6}   {'on, GiB':>8} {'off, GiB':>8} {'ratio':>6}")
    for name in TRICKS if only is None else (only,):
        found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for turn in range(repeats):
            for use in (True, False) if turn % 2 else (False, True):
                found[use].append(_measure(name, use))
        line = f"{name:12}"
        for what, digits in (("seconds", 3), ("peak", 2)):
            with_it, without = (statistics.median(one[what] for one in found[use]) for use in (True, False))
            line += f" {with_it:8.{digits}f} {without:8.{digits}f} {without / with_it:6.2f}  "
        print(line, flush=True)


if __name__ == "__main__":
    typer.run(main)
