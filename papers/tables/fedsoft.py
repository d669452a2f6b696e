"""FedSoft, Tables 1 and 3: the squared error of each center on each of the distributions clients mix."""

from __future__ import annotations

from papers.cell import Cell, Claim, Outcome, Reading, Run, Tree
from papers.declared import declared, printed

PRINTED: dict[str, list[list[float]]] = printed("fedsoft")["table1"]
EIGHT: list[list[float]] = printed("fedsoft")["table3"]


# The authors' code, and the paper's sigma for a center without votes.
AUTHORS: Tree = {"centers_init": "random", "start_from": "own", "unvoted": "average"}


def _config(pattern: str, clusters: int) -> Tree:
    return {
        "data": {
            "name": "synthetic-regression",
            "clients": 100,
            "clusters": clusters,
            "pattern": pattern,
            "dimension": 10,
            "variance": 10.0,
            "samples": [100, 200],
            "test": 0.2,
        },
        "model": {"name": "linear", "bias": False},
        "method": {"name": "fedsoft", "k": clusters, "lam": 1.0, "tau": 2, "sigma": 1e-4, "select": 60} | AUTHORS,
        "local": {
            "epochs": 10,
            "batch": 10,
            "lr": 0.005,
            "optimizer": "adam",
            "keep_optimizer": True,
            "shuffle": False,
        },
        "rounds": 50,
        "engine": {"name": "batched", "workers": 1},
    }


def _run(pattern: str, clusters: int = 2) -> Run:
    return Run(f"fedsoft/{clusters}-{pattern.replace(':', '-')}", _config(pattern, clusters), "centers")


def _error(theta: int, center: int) -> Reading:
    """The error on a theta, of the center that was matched to another (or the same) theta."""

    def read(outcome: Outcome) -> list[float]:
        from scipy.optimize import linear_sum_assignment

        errors = outcome.probe["mse"]
        _, columns = linear_sum_assignment(errors)
        return [float(errors[theta][columns[center]])]

    return read


def _associated(name: str) -> Claim:
    return Claim(
        f"{name}: each center is the better one on its own distribution",
        lambda ours: (
            ours(f"theta0/{name} c0") < ours(f"theta0/{name} c1")
            and ours(f"theta1/{name} c1") < ours(f"theta1/{name} c0")
        ),
        place="Experiments, Table 1",
    )


TABLE1 = declared(
    "fedsoft-table1",
    cells=tuple(
        Cell(
            f"theta{t}",
            f"{name} c{c}",
            _run(name),
            _error(t, c),
            # The paper's centers, numbered the same way.
            (table if table[0][0] + table[1][1] < table[0][1] + table[1][0] else tuple(r[::-1] for r in table))[t][c],
        )
        for t in range(2)
        for name, table in PRINTED.items()
        for c in range(2)
    ),
    claims=(
        *(_associated(name) for name in PRINTED),
        Claim(
            "30:70 is the least told apart: the smallest gap between the own and the other distribution",
            lambda ours: min(PRINTED, key=lambda n: ours(f"theta0/{n} c1") - ours(f"theta0/{n} c0")) == "30:70",
            place="Experiments, Table 1",
        ),
    ),
)


def _spread(theta: int) -> Reading:
    return lambda outcome: [max(outcome.probe["mse"][theta]) / min(outcome.probe["mse"][theta])]


TABLE3 = declared(
    "fedsoft-table3",
    cells=tuple(
        Cell(f"theta{t}", "max/min", _run("random", 8), _spread(t), max(row) / min(row)) for t, row in enumerate(EIGHT)
    ),
    claims=(
        Claim(
            "no center stands out: in every row the largest error is below 1.3 times the smallest",
            lambda ours: all(ours(f"theta{t}/max/min") < 1.3 for t in range(8)),
            place="Experiments, Table 3",
        ),
    ),
)


TABLES = (TABLE1, TABLE3)
