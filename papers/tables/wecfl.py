"""WeCFL, Tables 2 and 5, and the runs of its Figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from papers.cell import Cell, Claim, Reading, Table, last
from papers.declared import declared
from papers.tables.baselines import baselines
from papers.tables.wecfl_pooled import unpooled
from papers.tables.wecfl_printed import CLIENTWISE, CLUSTERWISE, Printed
from papers.tables.wecfl_runs import MINUTES, place_of, run_of, setting

IFCA = (
    "the printed IFCA probably comes from the published code, in which clients of a cluster train one shared object; "
    "that was not run, this is IFCA itself"
)
BATCH = "BatchNorm uses the statistics of test batches of 32, as the authors' code does"
VOTING = "printed without a deviation"
COLUMNS = ("accuracy", "macro_f1")
READ: dict[str, Reading] = {column: last(3, column) for column in COLUMNS}
BASE = ("fedavg", "fedprox", "fedavg+", "fedprox+", "ifca", "fesem", "wecfl")


def row_of(partition: str, k: int, method: str) -> str:
    """How a row is called."""
    return f"{partition} " + (method if k == 1 else f"K={k} {method}")


def line_cells(line: Printed, method: str, notes: Sequence[str], row: str | None = None) -> list[Cell]:
    """A printed line, and the run that is compared with it: mostly of the same name."""
    said = [*notes, *([BATCH] if line.data == "fmnist" else [])]
    run = run_of(line.data, line.partition, line.k, method)
    numbers = (("accuracy", line.accuracy), ("macro_f1", line.macro_f1))
    name = row_of(line.partition, line.k, row or line.method)
    return [
        Cell(name, column, run, READ[column], paper, spread, "; ".join(said), comparable=line.method != "ifca")
        for column, (paper, spread) in numbers
    ]


def extra_cells(data: str, partition: str, k: int, method: str, note: str, row: str | None = None) -> list[Cell]:
    """A row that the paper does not have."""
    said = "; ".join([f"not in the paper: {note}", *([BATCH] if data == "fmnist" else [])])
    run, name = run_of(data, partition, k, method), row_of(partition, k, row or method)
    return [Cell(name, column, run, READ[column], None, note=said) for column in COLUMNS]


def beside(data: str, partitions: Sequence[str], *, clusters: bool) -> list[Cell]:
    """A constant answer, each client alone, and the generating clusters, in each setting."""
    seconds = 60.0 * MINUTES[data]
    return [
        cell
        for p in partitions
        for cell in baselines(f"{p} ", place_of(data, p), setting(data, p), READ, clusters=clusters, seconds=seconds)
    ]


def printed_cells(lines: list[Printed], data: str, methods: Sequence[str]) -> list[Cell]:
    """Every printed line of these methods, each with the run of its own name."""
    notes = {"ifca": [IFCA], "fedavg+": [VOTING], "fedprox+": [VOTING]}
    return [
        cell
        for line in lines
        if line.data == data and line.method in methods
        for cell in line_cells(line, line.method, notes.get(line.method, []))
    ]


def _far_above(settings: tuple[str, str], by: float, place: str) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            f"{setting}, K=10: {method} is at least {by:g} points above FedAvg",
            lambda ours, setting=setting, method=method: (  # type: ignore[misc]
                ours(f"{setting} K=10 {method}/accuracy") >= ours(f"{setting} fedavg/accuracy") + by
            ),
            place=place,
        )
        for setting in settings
        for method in ("wecfl", "fesem")
    )


def _above(setting: str, place: str) -> Claim:
    return Claim(
        f"{setting}, K=10: WeCFL is above FeSEM",
        lambda ours: ours(f"{setting} K=10 wecfl/accuracy") > ours(f"{setting} K=10 fesem/accuracy"),
        "they differ in the weights of k-means only, and here by less than the printed deviations",
        place,
    )


def _floored() -> list[Cell]:
    note = "shares cut to two decimals, as in the authors' later loader"
    cells = [extra_cells("cifar", "0.1 floored", 10, method, note) for method in ("fesem", "wecfl")]
    return [cell for row in cells for cell in row] + beside("cifar", ("0.1 floored",), clusters=False)


CLUSTERED = ("(0.1, 10)", "(3, 2)")
BY_CLIENT = ("0.1", "2-class")
FIGURE3_K = (2, 5, 10, 20)
FIGURE3 = declared(
    "wecfl-figure3",
    cells=tuple(
        Cell("(0.1, 10) wecfl", f"K={k}", run_of("fmnist", "(0.1, 10)", k, "wecfl"), READ["accuracy"], None, note=BATCH)
        for k in FIGURE3_K
    ),
    claims=(
        Claim(
            "it converges for every K: at least 80 % after 100 rounds",
            lambda ours: all(ours(f"(0.1, 10) wecfl/K={k}") >= 80 for k in FIGURE3_K),
            place="section 8.2, Figure 3",
        ),
        Claim(
            "K=10 is better than K=2",
            lambda ours: ours("(0.1, 10) wecfl/K=10") > ours("(0.1, 10) wecfl/K=2"),
            place="section 8.2, Figure 3: a larger K is more likely to lead to better performance",
        ),
    ),
)


def _table2(data: str) -> Table:
    claims = _far_above(CLUSTERED, 30 if data == "cifar" else 5, "section 8.1, Table 2")
    return declared(
        f"wecfl-table2-{data}",
        cells=(*printed_cells(CLUSTERWISE, data, BASE), *beside(data, CLUSTERED, clusters=True)),
        claims=(*claims, *(_above(setting, "section 8.1, Table 2") for setting in CLUSTERED)),
    )


def _table5(data: str) -> Table:
    cifar = data == "cifar"
    return declared(
        f"wecfl-table5-{data}",
        cells=(
            *printed_cells(CLIENTWISE, data, BASE),
            *beside(data, BY_CLIENT, clusters=False),
            *(_floored() if cifar else ()),
        ),
        claims=_far_above(BY_CLIENT, 30 if cifar else 5, "appendix B.2, Table 5"),
        more=partial(unpooled, data=data),
    )


TABLES = (
    _table2("cifar"),
    _table5("cifar"),
    _table2("fmnist"),
    _table5("fmnist"),
    FIGURE3,
)
