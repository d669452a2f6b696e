"""Rounds per second of each engine on the BatchNorm CNN of the papers, as ratios within one run.

The machine may be shared and noisy: engines take turns, round by round, and the best time of each counts.
The data is random pixels of Fashion-MNIST's shape: what they show does not change what a step costs.
"""

from __future__ import annotations

import json
import platform
import time
from contextlib import ExitStack
from typing import Annotated

import torch
import typer

from coterie import FedAvg, Federation, Local
from coterie.asking import Asker
from coterie.driver import one_thread
from coterie.seeds import Purpose, generator
from coterie.setup import cores, make_engine, named_model
from coterie.tasks import Cohort


def main(
    clients: Annotated[int, typer.Option(help="clients per round")] = 24,
    samples: Annotated[int, typer.Option(help="samples per client")] = 300,
    rounds: Annotated[int, typer.Option(help="measured rounds of each engine")] = 4,
) -> None:
    """One line per engine: best and worst time of a round, rounds per second, and the ratio to one worker."""
    draw = torch.Generator().manual_seed(0)
    data = [
        (torch.rand(samples, 1, 28, 28, generator=draw), torch.randint(10, (samples,), generator=draw))
        for _ in range(clients)
    ]
    federation = Federation.from_arrays(data, test=0.0, outputs=10)
    model = named_model("cnn", {}, federation)
    method = FedAvg(local=Local(steps=10, batch=32, lr=0.001, momentum=0.9))
    names = [("sequential", None), *(("workers", n) for n in range(1, cores() + 1))]
    times: dict[str, list[float]] = {}
    with ExitStack() as stack, one_thread():
        engines = {
            f"{name} {n or ''}".strip(): stack.enter_context(make_engine(name, model, federation, n))
            for name, n in names
        }
        state = method.init(model, federation.roster, generator(0, Purpose.INIT))
        for t in range(rounds + 1):  # the first one warms up
            for name, engine in engines.items():
                cohort = Cohort(federation.roster.ids, t, federation.roster, generator(0, Purpose.METHOD, t, 0))
                began = time.perf_counter()
                method.round(state, cohort, Asker(engine, cohort.ids, 0, t))
                if t:
                    times.setdefault(name, []).append(time.perf_counter() - began)
    print(f"{platform.processor() or platform.machine()}, {cores()} cores, torch {torch.__version__}")
    print(f"cnn, {clients} clients x {samples} samples, 10 steps of batch 32, best of {rounds}")
    base = min(times["workers 1"])
    for name, seen in times.items():
        best, worst = min(seen), max(seen)
        print(f"{name:14} {best * 1e3:8.0f} ms (worst {worst * 1e3:.0f}) {1 / best:7.2f} rounds/s {base / best:6.2f}x")
    print(json.dumps({name: min(seen) for name, seen in times.items()}))


if __name__ == "__main__":
    typer.run(main)
