"""Peak memory of every method with 10,000 clients, a model of 100,000 numbers and 100 clients a round.

Each method runs in a process of its own; the promise is less than 4 GB for every method that does not by definition
keep a model per client met (Ditto and FedSoft do: personal models; so does StoCFL where nobody is like anyone).
The data is small on purpose and shared through index arrays: what is measured is what the server and the clients keep.
Parameters are set so that whatever costs room happens within the few rounds: FL+HC clusters, CFL splits, CAM joins.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Annotated, Any

import numpy as np
import torch
import typer

import coterie
from coterie import Federation, Local
from coterie.core.registry import METHODS, NO_CODE
from coterie.data.federation import Domain, Ragged
from coterie.data.scale import Scale
from coterie.methods.contract import Method
from coterie.training.build import named_model

LIMIT = 4.0  # GB, the promise
MOST = 20.0  # GB of address space: a method that wants more fails instead of taking the machine down
LOCAL = Local(steps=2, batch="full", lr=0.1)
PERSONAL = {"ditto", "fedsoft"}  # keep a model per client by definition
PARAMS: dict[str, dict[str, Any]] = {
    "fl+hc": {"warmup": 2},
    "cfl": {"eps1": 1e9, "eps2": 1e-9},  # splits every cluster in every round
    "cam": {"base": coterie.IFCA(local=LOCAL), "warmup": 1},
    "ifca-cam": {"base": coterie.IFCA(local=LOCAL), "warmup": 1},
    "fesem-cam": {"base": coterie.FeSEM(local=LOCAL, features="classifier"), "warmup": 1},
    "wecfl-cam": {"base": coterie.WeCFL(local=LOCAL), "warmup": 1},
    "fedgroup-cam": {"base": coterie.FedGroup(local=LOCAL), "warmup": 1},
    "stocfl-cam": {"base": coterie.StoCFL(local=LOCAL), "warmup": 1},
    "cfl-cam": {"base": coterie.CFL(local=LOCAL, eps1=1e9, eps2=1e-9), "warmup": 1},
}


def federation(clients: int, samples: int = 10, pool: int = 4000) -> Federation:
    """28x28 images of ten classes, in four clusters that name the classes differently; clients share one pool."""
    draw = np.random.default_rng(0)
    prototypes = draw.integers(0, 256, (10, 1, 28, 28))
    y = draw.integers(0, 10, pool)
    x = np.clip(prototypes[y] * 0.7 + draw.normal(0, 20, (pool, 1, 28, 28)), 0, 255).astype(np.uint8)
    table = torch.from_numpy(x), torch.from_numpy(y)
    domains = tuple(Domain(*table, Scale(255.0), relabel=(torch.arange(10) + 3 * shift) % 10) for shift in range(4))
    truth = np.arange(clients) % 4
    rows = draw.integers(0, pool, (clients, samples + 2)) + pool * truth[:, None]
    train, test = Ragged.of(list(rows[:, 2:])), Ragged.of(list(rows[:, :2]))
    return Federation(domains, train, test, outputs=10, truth=truth, name="shared pool")


def measure(name: str, clients: int, per_round: int, rounds: int, evaluated: int) -> dict[str, Any]:
    """Run one method here, and say what it took."""
    resource.setrlimit(resource.RLIMIT_AS, (int(MOST * 2**30), int(MOST * 2**30)))
    data = federation(clients)
    model = named_model("mlp", {"hidden": (126,)}, data, NO_CODE)
    method: Method[Any] = METHODS.build(name, {"local": LOCAL} | PARAMS.get(name, {}), NO_CODE)
    before = peak()
    result = coterie.run(
        method,
        data,
        model,
        rounds=rounds,
        participation=per_round,
        evaluate_every=rounds,
        evaluate_on=evaluated,
    )
    return {
        "parameters": model.size,
        "before": before,
        "peak": peak(),
        "seconds": [event.seconds for event in result.history],
        "clusters": result.summary.clusters,
    }


def peak() -> float:
    """The largest resident size of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(
    methods: Annotated[list[str] | None, typer.Argument(help="names; all but those with personal models")] = None,
    clients: Annotated[int, typer.Option(help="clients there are")] = 10_000,
    per_round: Annotated[int, typer.Option(help="clients per round")] = 100,
    rounds: Annotated[int, typer.Option(help="rounds")] = 5,
    evaluated: Annotated[int, typer.Option(help="clients evaluated at the end")] = 100,
    here: Annotated[bool, typer.Option(help="measure the one method named in this process", hidden=True)] = False,
) -> None:
    """One line per method: peak resident memory, and the seconds of a round (median and longest)."""
    names = methods or [name for name in METHODS.places if name not in PERSONAL]
    if here:
        print(json.dumps(measure(names[0], clients, per_round, rounds, evaluated)))
        return
    print(f"{clients} clients, {per_round} a round, {rounds} rounds, {evaluated} evaluated at the end")
    print(f"{'method':14} {'peak GB':>8} {'start GB':>9} {'s/round':>8} {'longest':>8} {'clusters':>9}")
    over = []
    for name in names:
        sizes = {"--clients": clients, "--per-round": per_round, "--rounds": rounds, "--evaluated": evaluated}
        options = [str(part) for pair in sizes.items() for part in pair]
        done = subprocess.run(
            [sys.executable, __file__, name, "--here", *options], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            print(f"{name:14} FAILED: {last}", flush=True)
            over.append(name)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        seconds = sorted(found["seconds"])
        print(
            f"{name:14} {found['peak']:8.2f} {found['before']:9.2f} {seconds[len(seconds) // 2]:8.2f} "
            f"{seconds[-1]:8.2f} {found['clusters']:9}",
            flush=True,
        )
        if found["peak"] >= LIMIT:
            over.append(name)
    print(f"{LIMIT:g} GB or more, or failed: {', '.join(over)}" if over else f"all under {LIMIT:g} GB")
    raise SystemExit(bool(over))


if __name__ == "__main__":
    typer.run(main)
