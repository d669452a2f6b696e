"""WeCFL, Tables 2 and 5, and Fed-CAM, Tables 1 and 2: the same runs, so each is made once."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.reproduce.cell import Cell, Claim, Run, Table, Tree, largest_cluster, last

WECFL = "Ma et al. 2022, arXiv:2202.06187"
CAM = "Ma et al. 2023, NeurIPS 2023"
DATA: dict[str, tuple[Tree, Tree]] = {
    "cifar": ({"name": "cifar10", "normalise": "symmetric"}, {"name": "lenet"}),
    "fmnist": ({"name": "fashion-mnist", "normalise": "symmetric"}, {"name": "cnn", "batch_statistics": 32}),
}
PARTITIONS: dict[str, Tree] = {
    "(0.1, 10)": {"name": "cluster-dirichlet", "clients": 200, "clusters": 10, "between": 0.1, "within": 10.0},
    "(3, 2)": {"name": "cluster-classes", "clients": 200, "clusters": 10, "between": 3, "within": 2},
    "0.1": {"name": "dirichlet", "clients": 200, "alpha": 0.1},
    "2-class": {"name": "classes", "clients": 200, "n": 2},
}
KMEANS: Tree = {"features": "last_weight", "kmeans": "fresh", "weights": "size"}
LOCAL: Tree = {"steps": 10, "batch": 32, "lr": 0.001, "momentum": 0.9, "keep_optimizer": True}
PLAIN: Tree = LOCAL | {"momentum": 0.0, "keep_optimizer": False}


def _methods(k: int) -> dict[str, tuple[Tree, Tree]]:
    """Method and changes to the run, by name."""
    return {
        "fedavg": ({"name": "fedavg"}, {}),
        "fedprox": ({"name": "fedprox", "mu": 0.95}, {}),
        "ifca": ({"name": "ifca", "k": k}, {"local": LOCAL | {"keep_optimizer": False}}),
        "fesem": ({"name": "fesem-authors", "k": k} | KMEANS, {}),
        "fesem-plain": ({"name": "fesem-authors", "k": k} | KMEANS, {"local": PLAIN}),
        "wecfl": ({"name": "wecfl-authors", "k": k} | KMEANS, {}),
        "ifca-cam": ({"name": "cam", "base": {"name": "ifca", "k": k}, "warmup": 30}, {}),
        # A local warm-up takes no rounds here, so that 70 rounds are the paper's 100.
        "fesem-cam": (
            {
                "name": "cam-authors",
                "base": {"name": "fesem-authors", "k": k} | KMEANS,
                "warmup": 30,
                "warmup_by": "local_unclustered",
                "order": "global_first",
            },
            {"rounds": 70},
        ),
    }


def _run(data: str, partition: str, k: int, method: str) -> Run:
    source, model = DATA[data]
    what, changes = _methods(k)[method]
    config: Tree = {
        "data": source | {"partition": PARTITIONS[partition]},
        "model": model,
        "method": what,
        "local": LOCAL,
        "rounds": 100,
        "evaluate_every": 10,
        "evaluate_last": 3,
        "weigh_clients": "train",
        "engine": {"name": "sequential"},
        "checkpoint_every": 25,
    }
    place = partition.strip("()").replace(", ", "-")
    group = method if method in ("fedavg", "fedprox") else f"k{k}-{method}"
    shown = (data, partition, group) == ("cifar", "(0.1, 10)", "k10-wecfl")
    if (data, method) == ("fmnist", "fesem-cam"):
        config["local"] = PLAIN
    if method.startswith("ifca"):  # every client looks at all K models, which are faster side by side
        config["engine"] = {"name": "batched", "workers": 1}
    return Run(f"wecfl/{data}/{place}/{group}", config | changes, "alike" if shown else "")


PROTOCOL = (
    "200 clients, all take part, 100 rounds of 10 steps of batch 32, SGD 0.001 with momentum 0.9 kept from round to "
    "round; ten generating clusters of 20 clients (or none, client-wise), official test images dealt by the same "
    "shares. Accuracy and macro-F1 per client, averaged by training size, mean over the last three rounds. FeSEM and "
    "WeCFL as the authors run them: fresh k-means each round on the weights of the last layer; they differ in the "
    "k-means weights only. The authors cut classes in file order, here they are shuffled; clients are drawn anew "
    "instead of being duplicated where a draw leaves one almost empty."
)
_IFCA = "the printed IFCA comes from code in which clients of a cluster train one shared object; this is IFCA itself"
_NO_DECAY = "as the paper says: clusters by the summed logits' loss at the start of a round (Eq. 2), 30 rounds warm-up"
_FESEM_CAM = (
    "the authors' order: global first; k-means without weights, as in the authors' code (Eq. 10 has n_i); a local "
    "warm-up of 30 rounds at a stretch, its models clustered after the first joint round instead of before it; the "
    "lambda term has no gradient"
)
_NO_MOMENTUM = "no momentum"
_DIVERGES = (
    " FeSEM-CAM is trained without momentum, as in the authors' launch file of 2023: with the paper's 0.9 it diverged "
    "from 83 % after 10 rounds to 31 % after 50 (loss 1.5 to 522), where it was stopped. In a small trial it did so "
    "with momentum that began anew every round too, more slowly with running statistics, and not without momentum. "
    "The cause is the authors' order, global first: a cluster model makes up for its client's own copy of the global "
    "model and is then used with the mean of all copies. In a trial with 20 clients and momentum 0.9 the loss went "
    "from 0.42 to 9.96 in that order, and from 0.34 to 0.28 in the paper's. "
    "So this choice was made after looking at test accuracy, of one seed. FeSEM itself has the paper's momentum, so "
    "that FeSEM-CAM is to be compared with fesem-plain, which has none: a row that was added when FeSEM-CAM's first 20 "
    "rounds were known. It is not above that one either (93.3 and 93.6), though it finds the ten generating "
    "clusters (ARI 1) and FeSEM does not (0.87). Both still rise in the last rounds, for without momentum steps of "
    "0.001 are short; after 70 rounds, which is what FeSEM-CAM has beside its warm-up, fesem-plain was at 93.0."
)
_BATCH = "BatchNorm uses the statistics of test batches of 32, as the authors' code does"


@dataclass(frozen=True)
class Printed:
    """A line of the papers: accuracy and macro-F1 with their deviations, in one setting."""

    data: str
    partition: str
    k: int
    method: str
    accuracy: tuple[float, float]
    macro_f1: tuple[float, float]


def _lines(data: str, partition: str, k: int, **methods: tuple[float, float, float, float]) -> list[Printed]:
    return [
        Printed(data, partition, k, name.replace("_", "-"), (a, a_std), (f, f_std))
        for name, (a, a_std, f, f_std) in methods.items()
    ]


CLUSTERWISE = [
    *_lines("cifar", "(0.1, 10)", 1, fedavg=(24.38, 3.30, 11.69, 3.15), fedprox=(24.73, 3.68, 11.28, 2.35)),
    *_lines(
        *("cifar", "(0.1, 10)", 10),
        ifca=(34.84, 5.82, 22.76, 3.99),
        fesem=(66.89, 2.18, 38.35, 4.24),
        wecfl=(70.95, 3.57, 40.19, 2.88),
        ifca_cam=(70.90, 1.18, 40.03, 1.28),
        fesem_cam=(78.45, 1.71, 49.50, 1.13),
    ),
    *_lines("cifar", "(3, 2)", 1, fedavg=(21.33, 3.83, 9.0, 0.58), fedprox=(22.66, 1.13, 9.23, 0.78)),
    *_lines(
        *("cifar", "(3, 2)", 10),
        ifca=(34.06, 2.60, 18.70, 1.31),
        fesem=(71.76, 2.23, 49.72, 3.84),
        wecfl=(72.13, 1.88, 50.65, 2.15),
        ifca_cam=(68.46, 4.08, 41.45, 4.00),
        fesem_cam=(75.04, 1.97, 55.90, 2.07),
    ),
    *_lines(
        *("cifar", "(0.1, 10)", 5),
        ifca=(34.10, 4.79, 22.12, 2.21),
        fesem=(59.06, 3.24, 32.33, 7.25),
        wecfl=(59.26, 3.32, 32.26, 3.46),
        ifca_cam=(58.13, 3.82, 28.09, 3.68),
        fesem_cam=(64.35, 2.33, 38.33, 1.77),
    ),
    *_lines(
        *("cifar", "(3, 2)", 5),
        ifca=(29.80, 4.49, 17.90, 2.08),
        fesem=(58.76, 3.35, 35.75, 2.54),
        wecfl=(62.44, 2.53, 38.55, 1.76),
        ifca_cam=(54.56, 3.58, 27.27, 1.06),
        fesem_cam=(65.58, 1.21, 38.63, 1.17),
    ),
    *_lines("fmnist", "(0.1, 10)", 1, fedavg=(86.08, 0.70, 57.24, 2.26), fedprox=(86.32, 0.78, 58.03, 3.19)),
    *_lines(
        *("fmnist", "(0.1, 10)", 10),
        ifca=(82.10, 5.40, 62.62, 8.22),
        fesem=(95.73, 1.28, 89.34, 1.57),
        wecfl=(95.88, 0.85, 89.81, 1.59),
        ifca_cam=(95.42, 2.54, 88.45, 5.46),
        fesem_cam=(96.19, 1.20, 92.37, 1.85),
    ),
    *_lines("fmnist", "(3, 2)", 1, fedavg=(86.33, 0.44, 46.09, 1.08), fedprox=(86.42, 0.63, 45.86, 1.42)),
    *_lines(
        *("fmnist", "(3, 2)", 10),
        ifca=(86.58, 4.97, 66.22, 5.69),
        fesem=(95.54, 0.74, 84.43, 2.38),
        wecfl=(97.10, 0.51, 88.96, 1.36),
        ifca_cam=(95.09, 0.87, 82.98, 1.16),
        fesem_cam=(98.07, 1.46, 92.43, 2.70),
    ),
]
CLIENTWISE = [
    *_lines("cifar", "0.1", 1, fedavg=(25.62, 3.47, 11.38, 2.02), fedprox=(25.72, 3.29, 11.14, 1.49)),
    *_lines(
        *("cifar", "0.1", 10),
        ifca=(47.62, 10.15, 23.36, 2.48),
        fesem=(67.0, 1.57, 31.69, 8.52),
        wecfl=(69.47, 4.16, 34.10, 7.79),
        ifca_cam=(72.54, 2.70, 42.86, 4.36),
        fesem_cam=(80.11, 1.82, 59.19, 4.67),
    ),
    *_lines("cifar", "2-class", 1, fedavg=(24.30, 3.53, 8.56, 0.64), fedprox=(24.19, 2.45, 8.69, 0.74)),
    *_lines(
        *("cifar", "2-class", 10),
        ifca=(47.96, 10.59, 17.88, 1.04),
        fesem=(63.64, 6.51, 42.97, 6.08),
        wecfl=(66.80, 6.39, 45.61, 5.90),
        ifca_cam=(61.01, 2.41, 31.63, 2.17),
        fesem_cam=(69.88, 1.70, 49.50, 1.42),
    ),
]


def _cells(lines: list[Printed], data: str, methods: tuple[str, ...]) -> tuple[Cell, ...]:
    cells = []
    for line in lines:
        if line.data != data or line.method not in methods:
            continue
        notes = {"ifca": _IFCA, "ifca-cam": _NO_DECAY, "fesem-cam": _FESEM_CAM}
        said = [notes[line.method]] if line.method in notes else []
        if data == "fmnist":
            said += [_NO_MOMENTUM, _BATCH] if line.method == "fesem-cam" else [_BATCH]
        row = f"{line.partition} " + (line.method if line.k == 1 else f"K={line.k} {line.method}")
        run = _run(line.data, line.partition, line.k, line.method)
        for column, (paper, spread) in (("accuracy", line.accuracy), ("macro_f1", line.macro_f1)):
            read = last(3, column)
            cells.append(Cell(row, column, run, read, paper, spread, "; ".join(said), comparable=line.method != "ifca"))
    return tuple(cells)


def _plain(setting: str) -> tuple[Cell, ...]:
    """FeSEM trained as FeSEM-CAM is where that has no momentum."""
    run = _run("fmnist", setting, 10, "fesem-plain")
    row, note = f"{setting} K=10 fesem-plain", f"FeSEM, {_NO_MOMENTUM}; not in the paper; {_BATCH}"
    return tuple(Cell(row, column, run, last(3, column), None, note=note) for column in ("accuracy", "macro_f1"))


def _far_above(setting: str, method: str, by: float) -> Claim:
    return Claim(
        f"{setting}, K=10: {method} is at least {by:g} points above FedAvg",
        lambda ours: ours(f"{setting} K=10 {method}/accuracy") >= ours(f"{setting} fedavg/accuracy") + by,
    )


def _above(setting: str, better: str, worse: str, column: str = "accuracy") -> Claim:
    return Claim(
        f"{setting}, K=10: {better} is above {worse} ({column})",
        lambda ours: ours(f"{setting} K=10 {better}/{column}") > ours(f"{setting} K=10 {worse}/{column}"),
    )


BASE = ("fedavg", "fedprox", "ifca", "fesem", "wecfl")
ADDED = ("fedavg", "fedprox", "ifca", "ifca-cam", "fesem", "fesem-cam")
_NAMES = {"cifar": "CIFAR-10", "fmnist": "Fashion-MNIST"}


def _far_above_fedavg(settings: tuple[str, str], by: float) -> list[Claim]:
    return [_far_above(setting, method, by) for setting in settings for method in ("wecfl", "fesem")]


def _added_is_above(settings: tuple[str, str]) -> list[Claim]:
    pairs = (("fesem-cam", "fesem"), ("ifca-cam", "ifca"))
    return [_above(setting, better, worse) for setting in settings for better, worse in pairs]


def _tables(data: str) -> list[Table]:
    shown = _NAMES[data]
    settings = ("(0.1, 10)", "(3, 2)")
    clustered = _far_above_fedavg(settings, 30 if data == "cifar" else 5)
    protocol = PROTOCOL + (_DIVERGES if data == "fmnist" else "")
    added = _added_is_above(settings)
    cells = _cells(CLUSTERWISE, data, ADDED)
    if data == "fmnist":
        cells += _plain("(0.1, 10)")
        added.insert(1, _above("(0.1, 10)", "fesem-cam", "fesem-plain"))
    return [
        Table(
            f"wecfl-table2-{data}",
            f"Cluster-wise non-IID, {shown}",
            *(WECFL, PROTOCOL, _cells(CLUSTERWISE, data, BASE), 4.0, tuple(clustered)),
        ),
        Table(
            f"cam-table1-{data}",
            f"Clustered additive modelling, cluster-wise non-IID, {shown}",
            *(CAM, protocol, cells, 4.0, tuple(added)),
        ),
    ]


BALANCE = Table(
    "cam-figure1",
    "Clustering collapse: the share of the largest cluster after the last round, CIFAR-10, K=10",
    *(
        CAM,
        PROTOCOL + " The figures print no numbers; ten clusters of equal size would be 10 %. IFCA collapses in the "
        "paper's figure and not here, where its clients do not train one shared object: on (0.1, 10) IFCA and IFCA-CAM "
        "end with the same nine clusters, so that there is nothing for CAM to balance.",
    ),
    cells=tuple(
        Cell(setting, method, _run("cifar", setting, 10, method), largest_cluster, None)
        for setting in ("(0.1, 10)", "(3, 2)")
        for method in ("ifca", "ifca-cam", "fesem", "fesem-cam")
    ),
    tolerance=0.0,
    claims=tuple(
        Claim(
            f"{setting}: IFCA-CAM's clusters are more balanced than IFCA's",
            lambda ours, setting=setting: ours(f"{setting}/ifca-cam") < ours(f"{setting}/ifca"),  # type: ignore[misc]
        )
        for setting in ("(0.1, 10)", "(3, 2)")
    ),
)

TABLES = (
    *_tables("cifar"),
    BALANCE,
    Table(
        "wecfl-table5-cifar",
        "Client-wise non-IID, CIFAR-10",
        *(WECFL, PROTOCOL, _cells(CLIENTWISE, "cifar", BASE), 4.0, tuple(_far_above_fedavg(("0.1", "2-class"), 30))),
    ),
    Table(
        "cam-table2-cifar",
        "Clustered additive modelling, client-wise non-IID, CIFAR-10",
        *(CAM, PROTOCOL, _cells(CLIENTWISE, "cifar", ADDED), 4.0, tuple(_added_is_above(("0.1", "2-class")))),
    ),
    *_tables("fmnist"),
)
