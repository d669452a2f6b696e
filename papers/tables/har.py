"""UCI-HAR: thirty people with telephones, a federation nobody partitioned; every method under the same budget."""

from __future__ import annotations

from papers.cell import Cell, Claim, Reading, Run, Tree, last
from papers.declared import declared
from papers.tables.baselines import baselines

METHODS: dict[str, Tree] = {
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox", "mu": 0.01},
    "ditto": {"name": "ditto", "lam": 0.1},
    "fedavg+": {"name": "fedavg+", "k": 4},
    "fedprox+": {"name": "fedprox+", "k": 4, "mu": 0.01},
    "ifca": {"name": "ifca", "k": 4},
    "fesem": {"name": "fesem", "k": 4},
    "wecfl": {"name": "wecfl", "k": 4},
    "cfl": {"name": "cfl", "eps1": 0.4, "eps2": 1.6},
    "fl+hc": {"name": "fl+hc"},
    "fedgroup": {"name": "fedgroup", "k": 4},
    "fedgrouprox": {"name": "fedgrouprox", "k": 4, "mu": 0.01},
    "stocfl": {"name": "stocfl", "tau": 0.5},
    "fedem": {"name": "fedem", "k": 4},
    "fedsoft": {"name": "fedsoft", "k": 4, "centers_init": "random", "start_from": "own", "unvoted": "average"},
    "ifca-cam": {"name": "cam", "base": {"name": "ifca", "k": 4}, "warmup": 10},
    "fesem-cam": {"name": "cam", "base": {"name": "fesem", "k": 4}, "warmup": 10},
    "wecfl-cam": {"name": "cam", "base": {"name": "wecfl", "k": 4}, "warmup": 10},
    "fedgroup-cam": {"name": "cam", "base": {"name": "fedgroup", "k": 4}, "warmup": 10},
    "stocfl-cam": {"name": "cam", "base": {"name": "stocfl", "tau": 0.5}, "warmup": 10},
    "cfl-cam": {"name": "cam", "base": {"name": "cfl", "eps1": 0.4, "eps2": 1.6}, "warmup": 10},
}


def _config() -> Tree:
    return {
        "data": {"name": "uci-har", "partition": {"name": "natural", "test": 0.2}},
        "model": {"name": "mlp", "hidden": [100]},
        "local": {"epochs": 2, "batch": 32, "lr": 0.05},
        "rounds": 60,
        "evaluate_every": 5,
        "evaluate_last": 3,
        "engine": {"name": "batched", "workers": 1},
        "checkpoint_every": 30,
    }


def _run(method: str) -> Run:
    return Run(f"har/{method}", _config() | {"method": METHODS[method]})


READ: dict[str, Reading] = {column: last(3, column) for column in ("accuracy", "macro_f1")}


TABLES = (
    declared(
        "har",
        cells=tuple(
            Cell(method, column, _run(method), read, None) for method in METHODS for column, read in READ.items()
        )
        + baselines("", "har", _config(), READ, clusters=False, seconds=30),
        claims=(
            Claim(
                "some clustered method is above FedAvg",
                lambda ours: (
                    max(ours(f"{m}/accuracy") for m in ("ifca", "fesem", "wecfl", "fedgroup", "stocfl"))
                    > ours("fedavg/accuracy")
                ),
                place="ours: what all five papers say of their own federations",
            ),
        ),
    ),
)
