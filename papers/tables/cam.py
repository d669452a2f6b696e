"""Fed-CAM, Tables 1 and 2, and the cluster sizes of its Figures 1 and 3. Baselines are WeCFL's runs."""

from __future__ import annotations

from collections.abc import Sequence

from papers.cell import Cell, Claim, Run, Table, Tree, largest_cluster
from papers.declared import declared
from papers.tables.baselines import baselines
from papers.tables.wecfl import (
    BY_CLIENT,
    CLIENTWISE,
    CLUSTERED,
    CLUSTERWISE,
    LAMBDAS,
    MINUTES,
    PARTITIONS,
    READ,
    Printed,
    beside,
    extra_cells,
    line_cells,
    printed_cells,
    run_of,
    setting,
)

BASELINES = ("fedavg", "fedprox", "fedavg+", "fedprox+", "ifca", "fesem")
OWN = ("ifca-cam", "fesem-cam")
COMPARED = 0.01  # the lambda whose row stands for the printed one; taken before any of these runs was made
AS_PAPER = "as the paper says: clusters by the summed logits' loss at the start of a round (Eq. 2), 30 rounds warm-up"
FESEM = (
    "as the paper says: both models train from the round's start, k-means weighted by n_i (Eq. 10-11, which makes it "
    "WeCFL-CAM too) on the linear layers, momentum 0.9, lambda with a gradient"
)
AUTHORS = (
    "the authors' order: global first; k-means without weights on the last layer, a local warm-up of 30 rounds at a "
    "stretch, its models clustered after the first joint round instead of before it; lambda has no gradient"
)
IFCA_AUTHORS = (
    "the authors' order: cluster first; clusters chosen by the accuracy of the cluster's model alone, here before "
    "training, in their code after it"
)
CAM = (
    " FeSEM-CAM has a row for each lambda the paper chose from; 0.01 is the one that is compared with the printed "
    "number, which is the best of three. The authors' order of training (fesem-cam-authors, ifca-cam-authors) are "
    "extra rows."
)


def _fesem_cam(line: Printed) -> list[Cell]:
    """The paper's method at each lambda, and the authors' variant."""
    where = (line.data, line.partition, line.k)
    cells = line_cells(line, f"fesem-cam-{COMPARED:g}", [FESEM, f"lambda {COMPARED:g}"])
    for lam in LAMBDAS:
        if lam != COMPARED:
            cells += extra_cells(*where, f"fesem-cam-{lam:g}", f"FeSEM-CAM with lambda {lam:g}")
    notes = [AUTHORS, *(["no momentum"] if line.data == "fmnist" else [])]
    return cells + line_cells(line, "fesem-cam", notes, "fesem-cam-authors")


def _cells(lines: list[Printed], data: str) -> list[Cell]:
    cells = printed_cells(lines, data, BASELINES)
    for line in lines:
        if line.data == data and line.method == "ifca-cam":
            cells += line_cells(line, "ifca-cam", [AS_PAPER])
            cells += line_cells(line, "ifca-cam-authors", [IFCA_AUTHORS], "ifca-cam-authors")
        elif line.data == data and line.method == "fesem-cam":
            cells += _fesem_cam(line)
    return cells


def _is_above(settings: Sequence[str], place: str, plain: bool = False) -> tuple[Claim, ...]:
    return tuple(
        Claim(
            f"{setting}, K=10: {better} is above {worse} ({column})",
            lambda ours, setting=setting, better=better, worse=worse, column=column: (  # type: ignore[misc]
                ours(f"{setting} K=10 {better}/{column}") > ours(f"{setting} K=10 {worse}/{column}")
            ),
            place=place,
        )
        for setting in settings
        for better, worse in (("fesem-cam", "fesem"), ("ifca-cam", "ifca"))
        for column in ("accuracy", "macro_f1")
    ) + tuple(
        _authors_are_above(setting, worse, place)
        for setting in settings
        for worse in (("fesem", "fesem-plain") if plain and setting == "(0.1, 10)" else ("fesem",))
    )


def _authors_are_above(setting: str, worse: str, place: str) -> Claim:
    return Claim(
        f"{setting}, K=10: FeSEM-CAM in the authors' order is above {worse} (accuracy)",
        lambda ours: ours(f"{setting} K=10 fesem-cam-authors/accuracy") > ours(f"{setting} K=10 {worse}/accuracy"),
        place=place,
    )


def _table1(data: str) -> Table:
    cells = [*_cells(CLUSTERWISE, data), *beside(data, CLUSTERED, clusters=True)]
    claims = _is_above(CLUSTERED, "section 5.1, Table 1", plain=data == "fmnist")
    if data == "fmnist":
        cells += extra_cells(data, "(0.1, 10)", 10, "fesem-plain", "FeSEM without momentum")
    return declared(
        f"cam-table1-{data}",
        cells=tuple(cells),
        claims=claims,
        own=OWN,
    )


def _table2(data: str) -> Table:
    return declared(
        f"cam-table2-{data}",
        cells=(*_cells(CLIENTWISE, data), *beside(data, BY_CLIENT, clusters=False)),
        claims=_is_above(BY_CLIENT, "section 5.1, Table 2"),
        own=OWN,
    )


def _more_balanced(setting: str, base: str, place: str) -> Claim:
    name = base.lower()
    return Claim(
        f"{setting}: {base}-CAM's clusters are more balanced than {base}'s",
        lambda ours: ours(f"{setting}/{name}-cam") < ours(f"{setting}/{name}"),
        place=place,
    )


BALANCE = declared(
    "cam-figure1",
    cells=tuple(
        Cell(setting, method, run_of("cifar", setting, 10, name), largest_cluster, None)
        for setting in (*CLUSTERED, *BY_CLIENT)
        for method, name in (
            ("ifca", "ifca"),
            ("ifca-cam", "ifca-cam"),
            ("fesem", "fesem"),
            ("fesem-cam", f"fesem-cam-{COMPARED:g}"),
            ("fesem-cam-authors", "fesem-cam"),
        )
    ),
    claims=tuple(
        _more_balanced(setting, base, f"section 5.2, Figure {figure}")
        for base, figure in (("IFCA", 1), ("FeSEM", 3))
        for setting in (*CLUSTERED, *BY_CLIENT)
    ),
)

# ----------------------------------------------------------------------------------------------- MedMNIST

MEDICAL: dict[str, tuple[Tree, Tree]] = {
    "path": ({"name": "medmnist", "which": "path", "normalise": "symmetric"}, {"name": "lenet"}),
    "tissue": (
        {"name": "medmnist", "which": "tissue", "normalise": "symmetric"},
        {"name": "cnn", "batch_statistics": 32},
    ),
}


def _medical(which: str) -> tuple[Cell, ...]:
    """The methods of Table 1 on a medical data set. The paper's numbers are in its supplement, which is not at hand."""
    data, model = MEDICAL[which]
    cells: list[Cell] = []
    changed: Tree = {"data": data | {"partition": PARTITIONS["(0.1, 10)"]}, "model": model}
    for method in ("fedavg", "ifca", "fesem", "wecfl", "ifca-cam", f"fesem-cam-{COMPARED:g}"):
        run = run_of("fmnist", "(0.1, 10)", 10, method)
        made = Run(f"medmnist/{which}/{method}", run.config | changed, seconds=run.seconds)
        cells += [Cell(f"(0.1, 10) {method}", column, made, read, None) for column, read in READ.items()]
    config = setting("fmnist", "(0.1, 10)") | changed
    return (
        *cells,
        *baselines("(0.1, 10) ", f"medmnist/{which}", config, READ, clusters=True, seconds=60 * MINUTES["fmnist"]),
    )


MEDMNIST = tuple(
    declared(
        f"cam-medmnist-{which}",
        cells=_medical(which),
    )
    for which in MEDICAL
)
TABLES = (
    _table1("cifar"),
    BALANCE,
    _table2("cifar"),
    _table1("fmnist"),
    _table2("fmnist"),
    *MEDMNIST,
)
