"""The runs of the table of attacks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from papers.cell import Run, Tree

KINDS = ("sign-flip", "label-flip", "alie", "inner-product", "colluders-as-cluster")
SHARES = (5, 10, 20, 40)  # percent
SPARE = 2  # clusters more than there are, in a defended run of a method that is told how many
DEFENCES: dict[str, Tree] = {  # by their names in the table
    "defended": {"name": "geometric-median"},
    "mixed": {"name": "centered-clipping", "mix": True, "opposed": False},
    "multi-krum": {"name": "multi-krum"},
}
UNDEFENDED, DEFENDED = "undefended", "defended"
FULL = (UNDEFENDED, DEFENDED)  # with every share; the other defences with 0 and 20 % only
WAYS = (UNDEFENDED, *DEFENCES)
AT = 20  # percent of hostile clients at which the target is asked


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


def shares(way: str) -> tuple[int, ...]:
    """The shares of hostile clients that are asked for."""
    return SHARES if way in FULL else (AT,)


@cache
def run_of(data: str, method: str, kind: str, share: int, way: str = UNDEFENDED) -> Run:
    """A method under an attack by a share (percent) of the clients; way: undefended, or one of `DEFENCES`."""
    case = DATA[data]
    config: Tree = {
        "data": case.data,
        "model": case.model,
        "method": _method(method, CLUSTERS + SPARE * (way in DEFENCES)),
        "local": case.local,
        "rounds": case.rounds,
        "evaluate_every": case.rounds,
        "engine": {"name": "batched", "workers": 1},
        "checkpoint_every": 1000,
    }
    if share:
        config["attack"] = {"kind": kind, "share": share / 100}
    if way in DEFENCES:
        config["aggregator"] = DEFENCES[way]
    name = f"attacks/{data}/{method}/{kind}-{share:02d}-{way}"
    wave = list(DATA).index(data) + (0 if share in (0, AT) else len(DATA))  # the targets first
    return Run(name, config, wave=wave, seconds=case.seconds)
