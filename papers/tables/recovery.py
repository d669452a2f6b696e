"""Whether each method with its defaults finds four hidden clusters of digits: a first run, no paper's table.

Methods with one model for all (or none) have no clusters to find, and a personal head is all of a linear model.
"""

from __future__ import annotations

from papers.cell import Cell, Run, Tree, last
from papers.declared import declared

SHARES = {"100 %": 1.0, "20 %": 0.2}
ROTATED: Tree = {"name": "rotated", "clients": 40}
KINDS: dict[str, Tree] = {  # the other ways in which four clusters may differ
    "shifted": {"name": "shifted", "clients": 40},
    "class groups": {"name": "pathological", "clients": 40},
    "cluster-Dirichlet": {"name": "cluster-dirichlet", "clients": 40, "clusters": 4},
}
METHODS: dict[str, Tree] = {
    name: {"name": name}
    for name in (
        *("halves", "stocfl", "cfl", "ifca", "fesem", "wecfl", "fl+hc", "fedgroup", "fedgrouprox", "composed"),
        *("fedem", "fedsoft", "ifca-cam", "fesem-cam", "wecfl-cam", "fedgroup-cam", "stocfl-cam", "cfl-cam"),
        *("clove", "fedrc", "feddrift", "fedclust", "pacfl", "fielding", "flux"),
    )
} | {f"{name}, k: auto": {"name": name, "k": "auto"} for name in ("ifca", "fesem", "wecfl", "fl+hc", "fedgroup")}


def _run(method: str, what: Tree, share: str, kind: str = "") -> Run:
    rounds = 15 if kind else 30
    config: Tree = {
        "data": {"name": "digits", "partition": KINDS.get(kind, ROTATED)},
        "model": {"name": "linear"},
        "method": what,
        "local": {"epochs": 5, "batch": 8, "lr": 0.1},
        "rounds": rounds,
        "participation": SHARES[share],
        "evaluate_every": rounds,
        "evaluate_last": 1,
        "engine": {"name": "batched", "workers": 1},
    }
    place = method.replace(", k: ", "-").replace("+", "plus")
    within = f"-{kind.lower().replace(' ', '-')}" if kind else ""
    return Run(f"recovery{within}/{place}/{share.removesuffix(' %')}", config)


TABLES = (
    declared(
        "recovery",
        cells=tuple(
            Cell(method, f"{share} {what}", _run(method, tree, share), last(1, column, 1.0), None)
            for method, tree in METHODS.items()
            for share in SHARES
            for what, column in (("ARI", "ari"), ("clusters", "clusters"))
        ),
    ),
    declared(
        "recovery-kinds",
        cells=tuple(
            Cell(method, f"{kind} {share} ARI", _run(method, tree, share, kind), last(1, "ari", 1.0), None)
            for method, tree in METHODS.items()
            for kind in KINDS
            for share in SHARES
        ),
    ),
)
