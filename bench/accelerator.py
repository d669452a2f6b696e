"""Clients on an accelerator: whether it agrees with the CPU, and how long a round takes on both. One command:

    python bench/accelerator.py --device cuda --peers --out accelerator.json

For every workload of `workloads.py` the same cohorts train once on the CPU and once on the device, from the same model
and on the same batches. The updates are compared (relative to the CPU's, over all clients of a cohort), and rounds are
timed in turn after one that does not count; where clients train together, one after another (engine `sequential`) is
timed on the device too. W5 is rounds of clustered methods, client and server work apart. With --peers whole rounds of
FedAvg are timed on the device in turn with a plain loop's, pfl-research's and Flower's, each in a process of its own,
as `compare.py` does it; their environments are made at the first use. The JSON has what is needed to judge the numbers.

--quick takes made-up federations: nothing is downloaded. --device cpu tries the script out and compares nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import clustered
import torch
import typer
from compare import race
from environments import LOCATION
from report import Json, machine, table
from torch import Tensor
from workloads import QUICK, ROUNDS, WORKLOADS, Workload, one_named

from coterie.client.contract import Moment
from coterie.core.compute import HOST, Compute, Precision
from coterie.core.model import Model
from coterie.core.seeds import Purpose, generator
from coterie.core.tasks import All, Fit, Fitted
from coterie.data.federation import Federation
from coterie.engines.choose import Sizes, chosen, make_engine
from coterie.engines.contract import Engine, Visit

WITHIN = {"float32": 1e-3, "bf16": 0.2, "fp16": 0.1}  # of the length of an update: how far the device may be off
W5 = "W5"
PEERS = "plain,coterie-auto,pfl-1,flwr"


class Case:
    """A workload with its data and model."""

    def __init__(self, work: Workload) -> None:
        self.work, self.name, self.local = work, work.name, work.local
        self.federation: Federation = work.federation()
        self.model: Model = work.network(self.federation)
        self.cohorts = [torch.from_numpy(ids) for ids in work.drawn(len(self.federation))]


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
    sizes = Sizes(len(case.cohorts[0]), ROUNDS)
    choice = chosen("auto", 1, case.model, case.federation, case.local, sizes)
    assert choice is not None
    start = case.model.init(generator(0, Purpose.INIT))
    make = partial(make_engine, model=case.model, federation=case.federation)
    here, there = (make(choice.name, workers=choice.workers, compute=on) for on in (HOST, compute))
    alone = make("sequential", workers=None, compute=compute)
    with here as host, there as device, alone as one_by_one:
        engines = {"cpu": host, compute.device: device, f"{compute.device}, one by one": one_by_one}
        if compute == HOST:
            del engines[f"{compute.device}, one by one"]
        first = {name: trained(engine, case, start, 0) for name, engine in engines.items()}  # does not count
        again = trained(device, case, start, 0)
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for t in range(1, rounds + 1):
            for name, engine in engines.items():
                began = time.perf_counter()
                trained(engine, case, start, t)  # its models are on the host at the end: nothing is still under way
                seconds[name].append(time.perf_counter() - began)
    expected, found = first["cpu"], first[compute.device]
    off = float((found - expected).norm() / expected.norm())
    return {
        "engine": choice.name,
        "clients": len(case.cohorts[0]),
        "numbers": case.model.size,
        "relative_difference": off,
        "agrees": off <= WITHIN[compute.precision],
        "same_bits_again": bool(torch.equal(found, again)),
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "all_seconds": seconds,
    }


def against_peers(work: Workload, contenders: str, rounds: int, logs: Path, environments: Path, device: str) -> Json:
    """Rounds of FedAvg by everyone, in turn, on one device."""
    kind, _, number = device.partition(":")
    own = {"BENCH_DEVICE": kind}  # the one that they can see
    if kind == "cuda" and number:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        own["CUDA_VISIBLE_DEVICES"] = seen.split(",")[int(number)] if seen else number
    before = dict(os.environ)
    os.environ.update(own)  # which contenders inherit
    try:
        names = [name.strip() for name in contenders.split(",")]
        return race(work, names, rounds, {}, logs, environments, thorough=False)
    finally:
        os.environ.clear()
        os.environ.update(before)


def about(compute: Compute) -> Json:
    """The device and the machine."""
    kind = torch.device(compute.device).type
    named = None if kind == "cpu" else getattr(torch.get_device_module(kind), "get_device_name", None)
    return {
        "device": compute.device,
        "name": compute.device if named is None else named(compute.device),
        "precision": compute.precision,
        "cuda": torch.version.cuda,
        "machine": machine(),
    }


def main(
    device: Annotated[str, typer.Option(help="auto, cuda, cuda:1, mps, xpu; cpu to try the script")] = "auto",
    only: Annotated[str, typer.Option(help="Workloads, as W1,W3.")] = ",".join([*WORKLOADS, W5]),
    rounds: Annotated[int, typer.Option(min=1, help="That are timed.")] = 5,
    precision: str = "float32",
    peers: Annotated[bool, typer.Option("--peers", help="Time other libraries on the same device, too.")] = False,
    contenders: Annotated[str, typer.Option(help="Who, as in compare.py.")] = PEERS,
    quickly: Annotated[bool, typer.Option("--quick", help="Made-up federations instead of the workloads.")] = False,
    out: Annotated[Path, typer.Option(help="Where the numbers go.")] = Path("accelerator.json"),
    environments: Annotated[Path, typer.Option(help="Where the peers' environments are.")] = LOCATION,
) -> None:
    """Compare an accelerator with the CPU, and with other libraries."""
    kinds: dict[str, Precision] = {"float32": "float32", "bf16": "bf16", "fp16": "fp16"}
    compute = Compute(device, kinds[precision]).resolved()
    if compute.device == "cpu" and device != "cpu":
        raise SystemExit("no accelerator here: this compares one with the CPU (--device cpu tries the script out)")
    if peers and precision != "float32":
        raise SystemExit("--peers: the others compute in float32; leave --precision out")
    out.parent.mkdir(parents=True, exist_ok=True)
    found: Json = about(compute) | {"workloads": {}, "peers": {}, "clustered": {}}
    wanted = [*QUICK, W5] if quickly else [name.strip() for name in only.split(",")]

    def write() -> None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    for name in wanted:
        if name == W5:
            on = tuple(QUICK)[:1] if quickly else clustered.ON
            found["clustered"] = clustered.measure(rounds, on=on, compute=compute)
            typer.echo("\n".join(clustered.table(found["clustered"])))
            write()
            continue
        work = one_named(name)
        found["workloads"][name] = row = measured(Case(work), compute, rounds)
        typer.echo(f"{name}: off by {row['relative_difference']:.1e}, seconds {row['seconds']}")
        write()
        if peers:
            logs = out.parent / f"{out.stem}-logs"
            found["peers"][name] = one = against_peers(work, contenders, rounds, logs, environments, compute.device)
            typer.echo("\n".join(table(one)))
            write()
    if not all(row["agrees"] for row in found["workloads"].values()):
        raise SystemExit("the device does not agree with the CPU")


if __name__ == "__main__":
    typer.run(main)
