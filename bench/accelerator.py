"""Clients on an accelerator: whether it agrees with the CPU, and how long a round takes on both. One command:

    python bench/accelerator.py --device cuda --out accelerator.json

For every workload of `workloads.py` the same cohorts train once on the CPU and once on the device, from the same model
and on the same batches. The updates are compared (relative to the CPU's, over all clients of a cohort), and rounds are
timed in turn after one that does not count. The JSON has what is needed to judge the numbers: device, versions, engine.
With --quick a made-up federation takes the workloads' place: nothing is downloaded.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
import workloads
from torch import Tensor

from coterie import Federation, Local
from coterie.client.answers import Moment
from coterie.core.compute import HOST, Compute, Precision
from coterie.core.model import Model
from coterie.core.references import All
from coterie.core.replies import Fitted
from coterie.core.seeds import Purpose, generator
from coterie.core.tasks import Fit
from coterie.engines.auto import Sizes
from coterie.engines.contract import Engine, Visit
from coterie.engines.factory import chosen, make_engine
from coterie.training.build import named_model

WITHIN = {"float32": 1e-3, "bf16": 0.2, "fp16": 0.1}  # of the length of an update: how far the device may be off


@dataclass(frozen=True, eq=False)
class Case:
    """What is trained."""

    name: str
    federation: Federation
    model: Model
    cohorts: list[Tensor]
    local: Local


def quick() -> Case:
    """Twelve clients with Gaussian samples."""
    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=(40, 16)).astype(np.float32), rng.integers(4, size=40)) for _ in range(12)]
    federation = Federation.from_arrays(arrays, outputs=4)
    model = named_model("mlp", {"hidden": (32,)}, federation)
    return Case("quick", federation, model, [torch.arange(12)], Local(steps=10, batch=8, lr=0.05))


def case(name: str) -> Case:
    """A workload."""
    work = workloads.WORKLOADS[name]
    federation = work.federation()
    cohorts = [torch.from_numpy(ids) for ids in work.drawn(len(federation))]
    return Case(name, federation, work.network(federation), cohorts, work.local)


def trained(engine: Engine, case: Case, start: Tensor, t: int) -> Tensor:
    """The updates (n, P) of round t."""
    visit = Visit((Fit(All(start), case.local),), case.cohorts[t % len(case.cohorts)], Moment(0, t, 0))
    outcome = engine.visit(visit)
    (reply,) = outcome.replies
    if outcome.missing or not isinstance(reply, Fitted) or reply.theta is None:
        raise SystemExit(f"{case.name}: {outcome.missing[:1]}")
    return reply.theta - start


def measured(case: Case, compute: Compute, rounds: int) -> dict[str, Any]:
    """Agreement and seconds per round."""
    sizes = Sizes(len(case.cohorts[0]), workloads.ROUNDS)
    choice = chosen("auto", 1, case.model, case.federation, case.local, sizes)
    assert choice is not None
    start = case.model.init(generator(0, Purpose.INIT))
    make = partial(make_engine, choice.name, case.model, case.federation, choice.workers)
    seconds: dict[str, list[float]] = {"cpu": [], compute.device: []}
    with make(compute=HOST) as host, make(compute=compute) as device:
        here, there = trained(host, case, start, 0), trained(device, case, start, 0)  # a round that does not count
        again = trained(device, case, start, 0)
        for t in range(1, rounds + 1):
            for name, engine in (("cpu", host), (compute.device, device)):
                began = time.perf_counter()
                trained(engine, case, start, t)  # its models are on the host at the end: nothing is still under way
                seconds[name].append(time.perf_counter() - began)
    off = float((there - here).norm() / here.norm())
    return {
        "engine": choice.name,
        "clients": len(case.cohorts[0]),
        "numbers": case.model.size,
        "relative_difference": off,
        "agrees": off <= WITHIN[compute.precision],
        "same_bits_again": bool(torch.equal(there, again)),
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "all_seconds": seconds,
    }


def main(
    device: Annotated[str, typer.Option(help="auto, cuda, cuda:1, mps, xpu")] = "auto",
    only: Annotated[str, typer.Option(help="Workloads, as W1,W3.")] = ",".join(workloads.WORKLOADS),
    rounds: Annotated[int, typer.Option(min=1, help="That are timed.")] = 5,
    precision: str = "float32",
    quickly: Annotated[bool, typer.Option("--quick", help="A made-up federation instead of the workloads.")] = False,
    out: Annotated[Path, typer.Option(help="Where the numbers go.")] = Path("accelerator.json"),
) -> None:
    """Compare an accelerator with the CPU."""
    kinds: dict[str, Precision] = {"float32": "float32", "bf16": "bf16", "fp16": "fp16"}
    compute = Compute(device, kinds[precision]).resolved()
    if compute.device == "cpu":
        raise SystemExit("no accelerator here: this compares one with the CPU")
    named = getattr(torch.get_device_module(torch.device(compute.device).type), "get_device_name", None)
    found: dict[str, Any] = {
        "device": compute.device,
        "name": compute.device if named is None else named(compute.device),
        "precision": precision,
        "torch": torch.__version__,
        "machine": platform.platform(),
        "workloads": {},
    }
    for one in (quick,) if quickly else [partial(case, name) for name in only.split(",")]:
        made = one()
        found["workloads"][made.name] = row = measured(made, compute, rounds)
        typer.echo(f"{made.name}: off by {row['relative_difference']:.1e}, seconds {row['seconds']}")
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if not all(row["agrees"] for row in found["workloads"].values()):
        raise SystemExit("the device does not agree with the CPU")


if __name__ == "__main__":
    typer.run(main)
