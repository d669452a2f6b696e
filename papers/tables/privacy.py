"""What client-level differential privacy costs: accuracy and recovered clusters against epsilon and the clients."""

from __future__ import annotations

from papers.cell import Cell, Claim, Run, Tree, last
from papers.declared import declared

METHODS: dict[str, Tree] = {
    "ifca": {"name": "ifca", "k": 4},
    "wecfl": {"name": "wecfl", "k": 4},
    "halves": {"name": "halves", "trial": False, "sketch": 16},
}
CLIENTS = (100, 400, 1000)
BUDGETS: dict[str, Tree] = {f"{one}": {"epsilon": float(one)} for one in (1, 2, 4, 8)} | {"inf": {"noise": 0.0}}


def _run(method: str, clients: int, budget: str) -> Run:
    config: Tree = {
        "data": {"name": "mnist", "normalise": "unit", "partition": {"name": "rotated", "clients": clients}},
        "model": {"name": "linear"},
        "method": METHODS[method],
        "local": {"steps": 10, "batch": 20, "lr": 0.1},
        "rounds": 10,
        "evaluate_every": 10,
        "privacy": {"delta": 1e-5, "clip": 0.5} | BUDGETS[budget],
        "engine": {"name": "batched", "workers": 1},
    }
    return Run(f"privacy/{method}/{clients}/epsilon-{budget}", config, wave=CLIENTS.index(clients))


TABLES = (
    declared(
        "privacy",
        cells=tuple(
            Cell(f"{method}, {clients} clients", f"{budget} {what}", _run(method, clients, budget), reading, None)
            for method in METHODS
            for clients in CLIENTS
            for budget in BUDGETS
            for what, reading in (("accuracy", last(1)), ("ARI", last(1, "ari", 1.0)))
        ),
        claims=(
            Claim(
                "with 1,000 clients IFCA at epsilon 8 is closer to no noise than with 100",
                lambda ours: (
                    ours("ifca, 1000 clients/inf accuracy") - ours("ifca, 1000 clients/8 accuracy")
                    < ours("ifca, 100 clients/inf accuracy") - ours("ifca, 100 clients/8 accuracy")
                ),
                place="ours",
            ),
        ),
    ),
)
