"""The runs of the table of attacks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from coterie.reproduce.cell import Run, Tree

KINDS = ("sign-flip", "label-flip", "alie", "inner-product", "colluders-as-cluster")
SHARES = (5, 10, 20, 40)  # percent
SPARE = 2  # clusters more than there are, in a defended run of a method that is told how many
DEFENCE: Tree = {"name": "geometric-median"}


@dataclass(frozen=True)
class Data:
    """A federation of 40 clients in four hidden clusters, and what is trained on it."""

    title: str
    data: Tree
    model: Tree
    local: Tree
    rounds: int
    seconds: float  # of a run of FedAvg, measured once on a busy two-core machine


DATA = {
    "demo": Data(
        "The demo: digits of 8x8 pixels, turned; a linear model, 15 rounds of 5 epochs",
        {"name": "digits", "partition": {"name": "rotated", "clients": 40}},
        {"name": "linear"},
        {"epochs": 5, "batch": 8, "lr": 0.1},
        15,
        2,
    ),
    "fmnist": Data(
        "Fashion-MNIST: 8,000 samples, turned; an MLP of 64 units, 20 rounds of 20 steps",
        {
            "name": "fashion-mnist",
            "partition": {
                "name": "subsample",
                "samples": 8000,
                "test_samples": 3000,
                "partition": {"name": "rotated", "clients": 40},
            },
        },
        {"name": "mlp", "hidden": [64]},
        {"steps": 20, "batch": 20, "lr": 0.1},
        20,
        6,
    ),
}
CLUSTERS = 4
METHODS = ("fedavg", "ifca", "wecfl", "fesem-cam", "stocfl", "halves")


def _method(name: str, k: int) -> Tree:
    if name in ("ifca", "wecfl"):
        return {"name": name, "k": k}
    return {"name": name, "base": {"k": k}} if name == "fesem-cam" else {"name": name}


def key(kind: str, share: int) -> str:
    """The column of a cell."""
    return "no attack" if not share else f"{kind} {share} %"


@cache
def run_of(data: str, method: str, kind: str, share: int, *, defended: bool) -> Run:
    """A method under an attack by a share (percent) of the clients."""
    case = DATA[data]
    config: Tree = {
        "data": case.data,
        "model": case.model,
        "method": _method(method, CLUSTERS + SPARE * defended),
        "local": case.local,
        "rounds": case.rounds,
        "evaluate_every": case.rounds,
        "engine": {"name": "batched", "workers": 1},
        "checkpoint_every": 1000,
    }
    if share:
        config["attack"] = {"kind": kind, "share": share / 100}
    if defended:
        config["aggregator"] = DEFENCE
    name = f"attacks/{data}/{method}/{kind}-{share:02d}-{'defended' if defended else 'undefended'}"
    wave = list(DATA).index(data) + (0 if share in (0, 20) else len(DATA))  # the targets first
    return Run(name, config, wave=wave, seconds=case.seconds)
