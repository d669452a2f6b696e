"""What Ray costs and saves: one workload on the sequential engine, on two workers and on two Ray actors, in turns.

    OMP_NUM_THREADS=1 python bench/on_ray.py

Rounds of FedAvg; the time is that of whole rounds, the models' way to the mean included, without evaluation. Bytes are
those of models and sums that reach the driver. Starting processes is not counted: it is paid once per run.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import torch
import typer

import coterie
from coterie import Federation, Local
from coterie.core.compute import one_thread
from coterie.core.registry import NO_CODE
from coterie.core.seeds import Purpose, generator
from coterie.core.tables import Cohort
from coterie.engines.choose import make_engine
from coterie.engines.contract import Engine
from coterie.engines.ray.engine import RayModels
from coterie.methods.contract import Method
from coterie.training.ask import RoundAsk
from coterie.training.build import named_model

ENGINES: dict[str, tuple[str, int | None]] = {
    "sequential": ("sequential", None),
    "workers, 2": ("workers", 2),
    "ray, 2": ("ray", 2),
}


def federation(clients: int) -> Federation:
    """Images of ten classes, 28 x 28, of 60 samples a client."""
    rng = np.random.default_rng(0)
    prototypes = rng.normal(size=(10, 1, 28, 28)).astype(np.float32)
    arrays = []
    for _ in range(clients):
        y = rng.integers(0, 10, 60)
        arrays.append((prototypes[y] + rng.normal(0, 1, (60, 1, 28, 28)).astype(np.float32), y))
    return Federation.from_arrays(arrays, outputs=10, standardise=False)


@dataclass
class Meter:
    """Bytes that came to the driver."""

    summed: int = 0
    gathered: int = 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Look on while models are summed up or gathered."""
        combined, gathered = RayModels.combined, RayModels.gathered

        def summing(models: RayModels, share: torch.Tensor) -> torch.Tensor:
            nodes = {part.node for part in models._parts}
            self.summed += len(nodes) * len(share) * models._size * 8  # in double precision
            return combined(models, share)

        def gathering(models: RayModels) -> torch.Tensor:
            self.gathered += models.nbytes if models._here is None else 0
            return gathered(models)

        with patch.object(RayModels, "combined", summing), patch.object(RayModels, "gathered", gathering):
            yield


def a_round(method: Method[Any], state: Any, engine: Engine, data: Federation, t: int, gather: bool) -> float:
    """Seconds of one round; with `gather` models are brought to the driver before they are averaged."""
    cohort = Cohort(data.roster.ids, t, data.roster, generator(0, Purpose.METHOD, t, 0))
    ask = RoundAsk(engine, data.roster.ids, 0, t)

    def asking(task: Any) -> Any:
        reply = ask(task)
        return dataclasses.replace(reply, sent=reply.theta)

    began = time.perf_counter()
    method.round(state, cohort, asking if gather else ask)
    return time.perf_counter() - began


def main(
    clients: Annotated[int, typer.Option(help="Clients of a round.")] = 60,
    hidden: Annotated[int, typer.Option(help="Width of the network.")] = 512,
    rounds: Annotated[int, typer.Option(help="Measured, after one to warm up.")] = 7,
) -> None:
    """Measure, and print a table."""
    data, meter = federation(clients), Meter()
    method = coterie.FedAvg(local=Local(epochs=5, batch=10, lr=0.05))
    model = named_model("mlp", {"hidden": (hidden,)}, data, NO_CODE)
    state = method.init(model, data.roster, generator(0, Purpose.INIT))
    seconds: dict[str, list[float]] = {}
    with one_thread(), ExitStack() as stack:
        engines = {name: stack.enter_context(make_engine(e, model, data, w)) for name, (e, w) in ENGINES.items()}
        stack.enter_context(meter.watch())
        for t in range(rounds + 1):
            for name, engine in engines.items():
                for gather in (False, True) if name.startswith("ray") else (False,):
                    label = f"{name}, models gathered" if gather else name
                    seconds.setdefault(label, []).append(a_round(method, state, engine, data, t, gather))
    report(model.size, clients, {name: many[1:] for name, many in seconds.items()}, meter, rounds + 1)


def report(size: int, clients: int, seconds: dict[str, list[float]], meter: Meter, rounds: int) -> None:
    """One line per engine: the median round, and how it compares."""
    print(f"{clients} clients a round, a model of {size:,} numbers ({size * 4 / 1e6:.1f} MB)")
    print("| engine | s / round | x sequential | MB of models to the driver / round |")
    print("|---|---|---|---|")
    plain = statistics.median(seconds["sequential"])
    moved = {"ray, 2": meter.summed / rounds, "ray, 2, models gathered": meter.gathered / rounds}
    for name, many in seconds.items():
        median = statistics.median(many)
        to_driver = f"{moved.get(name, clients * size * 4 * (name != 'sequential')) / 1e6:.1f}"
        print(f"| {name} | {median:.2f} | {plain / median:.2f} | {to_driver} |")


if __name__ == "__main__":
    typer.run(main)
