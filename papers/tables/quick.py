"""A small subset that runs in minutes and without downloads: what the papers stand on, checked on every change."""

from __future__ import annotations

from papers.cell import Cell, Claim, Run, Tree, last
from papers.declared import declared


def _run(skew: str, method: str, what: Tree, partition: Tree) -> Run:
    config: Tree = {
        "data": {"name": "digits", "partition": partition},
        "model": {"name": "linear"},
        "method": what,
        "local": {"epochs": 5, "batch": 8, "lr": 0.1},
        "rounds": 30,
        "evaluate_every": 5,
        "evaluate_last": 3,
        "engine": {"name": "batched", "workers": 1},
    }
    return Run(f"quick/{skew}/{method}", config, seconds=3)


SKEWS: dict[str, Tree] = {
    "rotated": {"name": "rotated", "clients": 40},
    "shifted": {"name": "shifted", "clients": 40},
}
METHODS: dict[str, Tree] = {
    "fedavg": {"name": "fedavg"},
    "fesem": {"name": "fesem", "k": 4},
    "wecfl": {"name": "wecfl", "k": 4},
    "ifca": {"name": "ifca", "k": 8},
    "ifca-cam": {"name": "cam", "base": {"name": "ifca", "k": 8}, "warmup": 5},
    "fedgroup": {"name": "fedgroup", "k": 4},
    "stocfl": {"name": "stocfl", "tau": 0.6, "psi": {"epochs": 10, "batch": "full", "lr": 0.1}},  # as the authors do
}
TABLES = (
    declared(
        "quick",
        cells=tuple(
            cell
            for skew, partition in SKEWS.items()
            for method, what in METHODS.items()
            for cell in (
                Cell(skew, method, _run(skew, method, what, partition), last(3), None),
                Cell(skew, f"{method} ARI", _run(skew, method, what, partition), last(1, "ari", 1.0), None),
            )
        ),
        claims=(
            *(
                Claim(
                    f"{skew}: {method} is at least 10 points above FedAvg",
                    lambda ours, skew=skew, method=method: ours(f"{skew}/{method}") >= ours(f"{skew}/fedavg") + 10,  # type: ignore[misc]
                    place="ours: the order of the papers' tables",
                )
                for skew in SKEWS
                for method in ("wecfl", "fesem", "fedgroup", "stocfl")
            ),
            Claim(
                "StoCFL finds the hidden clusters unaided, nearly (ARI at least 0.7)",
                lambda ours: all(ours(f"{skew}/stocfl ARI") >= 0.7 for skew in SKEWS),
                place="StoCFL, section A.1, in small",
            ),
        ),
    ),
)
