"""StoCFL, Table 2: shifted labels with everyone taking part, against CFL."""

from __future__ import annotations

from papers.cell import Cell, Claim, Run, Tree, last, probed
from papers.declared import declared
from papers.tables.stocfl import BATCHED, MNIST, WIDE

SHIFTED: dict[str, tuple[Tree, Tree, int, float]] = {  # data, model, samples that are used, seconds per model
    "MNIST": (MNIST, WIDE, 48_000, 5800),
    "CIFAR": ({"name": "cifar10", "normalise": "symmetric"}, {"name": "lenet"}, 40_000, 1600),
}
PRINTED = {  # MNIST, CIFAR
    "fedavg": (24.44, 13.01),
    "ifca": (98.11, 54.05),
    "cfl": (98.20, 55.23),
    "stocfl": (98.14, 55.42),
}
METHODS: dict[str, Tree] = {
    "fedavg": {"name": "fedavg", "weights": "equal"},
    "ifca": {"name": "ifca", "k": 4, "weights": "equal"},
    "cfl": {"name": "cfl", "eps1": 0.4, "eps2": 1.6, "linkage": "complete", "first_split": 20},
    "stocfl": {"name": "stocfl", "tau": 0.5, "lam": 0.05, "weights": "equal"},
}
OURS: dict[str, Tree] = {"majority": {"name": "local"}, "local": {"name": "local"}, "oracle": {"name": "oracle"}}


def _config(data: str) -> Tree:
    source, model, samples, _ = SHIFTED[data]
    inner: Tree = {"name": "shifted", "clients": 20, "reuse": True}
    return {
        "data": source | {"partition": {"name": "subsample", "samples": samples, "partition": inner}},
        "model": model,
        "local": {"epochs": 5, "batch": 100, "lr": 0.1},
        "rounds": 100,
        "evaluate_every": 10,
        "checkpoint_every": 10,
    } | (BATCHED if data == "CIFAR" else {"engine": {"name": "sequential"}})


def _run(data: str, method: str, what: Tree) -> Run:
    seconds = SHIFTED[data][3] * (2 if method in ("ifca", "stocfl") else 1)
    config, place = _config(data) | {"method": what}, f"stocfl/table2/{data.lower()}/{method}"
    if method == "majority":
        once: Tree = {"rounds": 1, "local": {"steps": 1, "batch": 1, "lr": 0.001}}
        return Run(place, config | once, "majority", seconds=60)
    return Run(place, config, seconds=seconds)


def _cells() -> list[Cell]:
    cells = [
        Cell(method, data, _run(data, method, METHODS[method]), last(), paper)
        for method, printed in PRINTED.items()
        for data, paper in zip(SHIFTED, printed, strict=True)
    ]
    for method, what in OURS.items():
        read = probed("majority", "accuracy", scale=100.0) if method == "majority" else last()
        note = f"not in the paper: {method}"
        cells += [Cell(method, data, _run(data, method, what), read, None, note=note) for data in SHIFTED]
    return cells


TABLE2 = declared(
    "stocfl-table2",
    cells=tuple(_cells()),
    claims=(
        Claim(
            "StoCFL is within a point of CFL on both data sets",
            lambda ours: all(abs(ours(f"stocfl/{data}") - ours(f"cfl/{data}")) <= 1 for data in SHIFTED),
            place="section 3.2, Table 2: a close performance",
        ),
    ),
)
TABLES = (TABLE2,)
