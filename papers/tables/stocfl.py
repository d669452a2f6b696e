"""StoCFL: Tables 1 and 5, and Figure 3."""

from __future__ import annotations

import dataclasses

from papers.cell import Cell, Claim, Probe, Run, Table, Tree, last, probed
from papers.tables.baselines import NOTES, alone, baselines, majority, oracle

PAPER = "Zeng et al. 2023, arXiv:2303.00897"
MNIST: Tree = {"name": "mnist", "normalise": "unit"}
WIDE: Tree = {"name": "mlp", "hidden": [2048]}
AUTHORS: Tree = {  # what the authors' code does where the paper says otherwise
    "name": "stocfl-authors",
    "global_update": "chain",
    "cluster_vector": "sampled",
    "merge_model": "larger",
    "new_cluster": "global",
    "weights": "equal",
}
SKEWS: dict[str, tuple[Tree, float, int]] = {  # data, tau, epochs of the representation in the authors' code
    "pathological": (MNIST | {"partition": {"name": "pathological", "clients": 400}}, 0.3, 1),
    "rotated": (MNIST | {"partition": {"name": "rotated", "clients": 400, "reuse": True}}, 0.3, 10),
    "shifted": (MNIST | {"partition": {"name": "shifted", "clients": 400, "reuse": True}}, 0.3, 1),
    "hybrid": (
        MNIST
        | {"partition": {"name": "hybrid", "clients": 200, "other": {"name": "fashion-mnist", "normalise": "unit"}}},
        *(0.3, 5),
    ),
}


BATCHED: Tree = {
    "engine": {"name": "batched", "workers": 1}
}  # wide layers and few samples: 1.5 to 3 times as fast; LeNet: 4


def config_of(data: Tree, method: Tree, local: Tree, rounds: int, every: int = 10) -> Tree:
    return {
        "data": data,
        "model": WIDE,
        "method": method,
        "local": local,
        "rounds": rounds,
        "participation": 0.1,
        "evaluate_every": every,
        "engine": {"name": "sequential"},
        "checkpoint_every": 25,
    }


# ------------------------------------------------------------------------------------------ Table 5

LAMBDAS = (10.0, 1.0, 0.5, 0.05, 0.01, 0.0)
PRINTED_5 = {  # by lambda, then the global model
    "pathological": (89.28, 86.89, 83.49, 37.83, 24.12, 24.05, 92.17),
    "rotated": (62.06, 94.88, 95.28, 95.86, 94.20, 92.25, 92.65),
    "shifted": (32.69, 92.36, 93.85, 95.12, 93.80, 92.22, 24.46),
    "hybrid": (92.26, 92.75, 92.77, 92.69, 91.99, 90.11, 92.50),
}


def _lambda_run(skew: str, lam: float) -> Run:
    data, tau, epochs = SKEWS[skew]
    local: Tree = {"epochs": 5, "batch": 300, "lr": 0.1}
    method = AUTHORS | {"tau": tau, "lam": lam, "psi": {"epochs": epochs, "batch": "full", "lr": 0.1}}
    probe: Probe = "clusters_on_all" if skew == "pathological" else "clusters"
    return Run(f"stocfl/table5/{skew}/lambda-{lam:g}", config_of(data, method, local, 50, 25) | BATCHED, probe)


def _beside_5(skew: str) -> list[Cell]:
    """A constant answer and each client alone on its own test data; the true clusters tested as StoCFL's are."""
    config = _lambda_run(skew, 0.0).config
    place = f"stocfl/table5/{skew}"
    truth = oracle(place, config, 300)
    tested = dataclasses.replace(truth, probe=_lambda_run(skew, 0.0).probe)
    most = probed("majority", "accuracy", scale=100.0)
    return [
        Cell(skew, "majority", majority(place, config), most, None, note=f"{NOTES['majority']}; its own test data"),
        Cell(skew, "local", alone(place, config, 300), last(), None, note=f"{NOTES['local']}; its own test data"),
        Cell(skew, "oracle", tested, probed("clusters", scale=100.0), None, note=NOTES["oracle"]),
    ]


TABLE5 = Table(
    name="stocfl-table5",
    title="Effect of lambda on cluster models and the global model, MNIST",
    paper=PAPER,
    protocol="MLP 784-2048-10, 10 % of the clients a round, 50 rounds, tau 0.3 (the authors' README has 0.2 to 0.3), "
    "SGD 0.1. Their code: the global model goes from client to client within a round and its snapshots are "
    "averaged (chain), cluster vectors of the sampled members, equal weights. Batch size and epochs are not "
    "published: 5 epochs of batch 300, which makes as many steps times learning rate as Table 1's runs. A "
    "cluster's model is tested on the whole test set as its kind of client sees it; for pathological that is "
    "all ten classes, of which a cluster without the global model's help knows two or three, so that 25 % is "
    "the most it can reach. With lambda 10 and a step of 0.1 every step goes back to the global model first, "
    "so that of a client's training the last gradient is left: our guess is that its batch, which is not "
    "published, decides the cell. Hybrid is below the print at every lambda, at 0 too; why is not known.",
    tolerance=2.0,
    cells=tuple(
        Cell(skew, f"lambda {lam:g}", _lambda_run(skew, lam), probed("clusters", scale=100.0), paper)
        for skew, printed in PRINTED_5.items()
        for lam, paper in zip(LAMBDAS, printed, strict=False)
    )
    + tuple(
        Cell(skew, "global", _lambda_run(skew, 0.05), probed("global", scale=100.0), printed[-1])
        for skew, printed in PRINTED_5.items()
    )
    + tuple(cell for skew in SKEWS for cell in _beside_5(skew)),
    claims=(
        Claim(
            "rotated and shifted: lambda 0.05 is better than 0 (with the authors' chain)",
            lambda ours: all(ours(f"{s}/lambda 0.05") > ours(f"{s}/lambda 0") for s in ("rotated", "shifted")),
            place="section A.2, Table 5",
        ),
        Claim(
            "pathological: lambda 10 is far better than 0 on all ten classes",
            lambda ours: ours("pathological/lambda 10") > ours("pathological/lambda 0") + 30,
            place="section A.2, Table 5",
        ),
    ),
    seeds=3,
    why="our guess at the misses, at lambda 10 and on hybrid: batch and epochs, which are not published",
)

# ------------------------------------------------------------------------------------------ Table 1

SIZES = {"4800x50": 4800, "2400x100": 2400, "1200x200": 1200}
PRINTED_1: dict[str, tuple[float | None, float | None, float | None]] = {
    "fedavg": (95.72, 95.32, 94.96),
    "fedprox": (76.45, 77.40, 77.82),
    "ditto": (65.05, 73.93, 79.38),
    "ifca-2": (84.42, 85.25, 86.12),
    "ifca-4": (91.74, 91.39, 91.00),
    "ifca-6": (91.74, 91.94, 92.15),
    "stocfl": (97.00, 96.89, 96.71),
    "stocfl-chain": (97.00, 96.89, 96.71),
}
_CHAINED = "the printed FedAvg is in all likelihood the chained global model of the authors' code"
TEN_EPOCHS: Tree = {"epochs": 10, "batch": "full", "lr": 0.1}  # how the authors' code represents a client
RECOMPUTED: Tree = {  # Algorithm 1, but that a merged cluster is compared anew before the next pair is merged
    "name": "stocfl-authors",
    "tau": 0.5,
    "lam": 0.05,
    "weights": "equal",
    "global_update": "parallel",
    "cluster_vector": "all_members",
    "merge_model": "mean",
    "new_cluster": "anchor",
    "recompute_after_merge": True,
}
METHODS_1: dict[str, Tree] = {
    "fedavg": {"name": "fedavg", "weights": "equal"},
    "fedprox": {"name": "fedprox", "mu": 0.05, "weights": "equal"},
    "ditto": {"name": "ditto", "lam": 0.05},
    "ifca-2": {"name": "ifca", "k": 2, "weights": "equal"},
    "ifca-4": {"name": "ifca", "k": 4, "weights": "equal"},
    "ifca-6": {"name": "ifca", "k": 6, "weights": "equal"},
    "stocfl": {"name": "stocfl", "tau": 0.5, "lam": 0.05, "weights": "equal"},
    "stocfl-chain": AUTHORS | {"tau": 0.5, "lam": 0.05, "psi": TEN_EPOCHS},
    "stocfl-ten-epochs": {"name": "stocfl", "tau": 0.5, "lam": 0.05, "weights": "equal", "psi": TEN_EPOCHS},
    "stocfl-recomputed": RECOMPUTED,
}
_EXTRA = {
    "stocfl-ten-epochs": "not in the paper: Algorithm 1, but ten local epochs represent a client",
    "stocfl-recomputed": "not in the paper: Algorithm 1, but a merged cluster is compared anew before the next merge",
}


def _rotated_run(method: str, size: str) -> Run:
    data = MNIST | {"partition": {"name": "rotated", "clients": SIZES[size], "reuse": True}}
    local: Tree = {"epochs": 5, "batch": "full", "lr": 0.1}
    config = config_of(data, METHODS_1[method], local, 100, 20) | BATCHED
    if method in ("ditto", "stocfl-chain"):  # a checkpoint would hold a model, or a representation, of every client
        config["checkpoint_every"] = 100
    return Run(f"stocfl/table1/{size}/{method}", config, _probe(method), seconds=1800)


def _probe(method: str) -> Probe:
    """Cluster models are tested one by one; Ditto has none, and its clients' own models are tested anyway."""
    return "" if method == "ditto" else "clusters"


def _table1_cell(method: str, size: str, paper: float | None) -> Cell:
    read = probed("clusters", scale=100.0) if method.startswith(("stocfl", "ifca")) else last()
    note = {
        "fedavg": _CHAINED,
        "stocfl": "as the paper says: a gradient represents a client, all clients start from the same global model",
    }
    if method == "ditto":
        note["ditto"] = (
            "every client keeps a model of 6.5 MB: 31, 16 and 8 GB for 4,800, 2,400 and 1,200 clients, "
            "of which a quarter of the memory lies there and the rest in files (11 GB of memory in all, with 24 there)"
        )
    return Cell(
        *(method, size, _rotated_run(method, size), read, paper),
        note=note.get(method, "the authors' chain" if method == "stocfl-chain" else ""),
        comparable=method != "fedavg",
    )


def _beside_1(size: str) -> list[Cell]:
    config = _rotated_run("fedavg", size).config
    place = f"stocfl/table1/{size}"
    truth = dataclasses.replace(oracle(place, config, 1200), probe="clusters")
    most = probed("majority", "accuracy", scale=100.0)
    return [
        Cell("majority", size, majority(place, config), most, None, note=NOTES["majority"]),
        Cell("local", size, alone(place, config | {"checkpoint_every": 100}, 1200), last(), None, note=NOTES["local"]),
        Cell("oracle", size, truth, probed("clusters", scale=100.0), None, note=NOTES["oracle"]),
    ]


TABLE1 = Table(
    name="stocfl-table1",
    title="Rotated MNIST, 10 % of the clients a round",
    paper=PAPER,
    protocol="Every rotation has all 60,000 images in equal shards; MLP 784-2048-10, pixels 0..1, 100 rounds, 5 "
    "full-batch steps of SGD 0.1, tau 0.5, lambda 0.05, means of equal weights; the columns in which everyone takes "
    "part cost ten times as much and are not declared. A cluster's model is tested on the "
    "10,000 test images turned as its clients' are, and the mean is over clusters; FedAvg, FedProx and Ditto over all. "
    "The printed StoCFL is what the authors' chain gives (stocfl-chain); trained side by side, as Algorithm 1 says, it "
    "is some 6 points lower with 1,200 and 2,400 clients. With 4,800, of 50 images each, the paper's representation, "
    "one gradient, does not tell the rotations apart at this tau: 4,763 clients end in one cluster, beside 21 small "
    "ones. stocfl-chain, in which ten epochs represent a client, finds the four rotations at all sizes (ARI 1); it has "
    "other deviations as well, and stocfl-ten-epochs and stocfl-recomputed are there to tell which of them does it. "
    "Likewise the printed FedAvg is the chain's global model (fedavg-chain), and FedAvg itself is no better than "
    "FedProx.",
    tolerance=2.0,
    cells=tuple(
        _table1_cell(method, size, paper)
        for method, printed in PRINTED_1.items()
        for size, paper in zip(SIZES, printed, strict=True)
    )
    + tuple(
        Cell(
            *("fedavg-chain", size, _rotated_run("stocfl-chain", size), probed("global", scale=100.0), paper),
            note="the global model of the chained StoCFL run: what the printed FedAvg probably is",
        )
        for size, paper in zip(SIZES, PRINTED_1["fedavg"], strict=True)
    )
    + tuple(
        Cell(*(method, "4800x50", _rotated_run(method, "4800x50")), probed("clusters", scale=100.0), None, note=note)
        for method, note in _EXTRA.items()
    )
    + tuple(cell for size in SIZES for cell in _beside_1(size)),
    claims=tuple(
        Claim(
            f"{size}: StoCFL with the authors' chain is above IFCA, which is above FedProx",
            lambda ours, size=size: ours(f"stocfl-chain/{size}") > ours(f"ifca-4/{size}") > ours(f"fedprox/{size}"),  # type: ignore[misc]
            place="section 3.2, Table 1",
        )
        for size in SIZES
    ),
    why="trained side by side, as Algorithm 1 says, StoCFL is below the print; the authors' chain reaches it",
)

# ----------------------------------------------------------------------------- Rotated CIFAR, and Figure 3

CIFAR: Tree = {
    "name": "cifar10",
    "normalise": "symmetric",
    "partition": {"name": "rotated", "clients": 200, "angles": [0, 180], "reuse": True},
}
PRINTED_CIFAR = {"fedavg": 48.26, "fedprox": 47.17, "ditto": 46.91, "ifca-2": 50.62, "ifca-4": 50.80, "ifca-6": 51.04}
RATES = (0.05, 0.1, 0.2, 0.5, 1.0)


def _cifar_run(method: str) -> Run:
    psi: Tree = {"psi": {"epochs": 20, "batch": 50, "lr": 0.1}} if method == "stocfl-chain" else {}
    config = config_of(CIFAR, METHODS_1[method] | psi, {"epochs": 5, "batch": 50, "lr": 0.1}, 200, 20)
    seconds = 240.0 if method.startswith("fed") else 480.0  # 1.1 a round of FedAvg; the others train two models or look
    return Run(
        f"stocfl/cifar/{method}", config | BATCHED | {"model": {"name": "lenet"}}, _probe(method), seconds=seconds
    )


TABLE1_CIFAR = Table(
    name="stocfl-table1-cifar",
    title="Rotated CIFAR-10, 10 % of the clients a round",
    paper=PAPER,
    protocol="200 clients x 500, turned by 0 or 180 degrees, LeNet, 200 rounds, 5 epochs of batch 50, SGD 0.1, tau "
    "0.5, lambda 0.05; tested as in stocfl-table1.",
    tolerance=2.0,
    cells=(
        *(
            Cell(
                *(method, "10 %", _cifar_run(method)),
                probed("clusters", scale=100.0) if method.startswith("ifca") else last(),
                paper,
                note=_CHAINED if method == "fedavg" else "",
                comparable=method != "fedavg",
            )
            for method, paper in PRINTED_CIFAR.items()
        ),
        Cell("stocfl", "10 %", _cifar_run("stocfl"), probed("clusters", scale=100.0), 52.84),
        Cell("stocfl-chain", "10 %", _cifar_run("stocfl-chain"), probed("clusters", scale=100.0), 52.84),
        *baselines(
            *("", "stocfl/cifar", _cifar_run("fedavg").config, {"accuracy": last()}), clusters=True, seconds=240
        ),
    ),
)


METHODS_3: dict[str, tuple[str, Tree]] = {  # by what it is called in the table: its place below results/, itself
    "fedavg": ("fedavg", METHODS_1["fedavg"]),
    "ifca": ("ifca", METHODS_1["ifca-4"]),
    "stocfl": ("stocfl-tau-0.5", METHODS_1["stocfl"]),
    "stocfl tau 0.3": ("stocfl", METHODS_1["stocfl"] | {"tau": 0.3}),
}


def _rate_run(method: str, rate: float) -> Run:
    data = MNIST | {"partition": {"name": "rotated", "clients": 400}}
    local: Tree = {"epochs": 5, "batch": 50, "lr": 0.1}
    place, what = METHODS_3[method]
    config = config_of(data, what, local, 50, 5)
    changed = {"participation": rate, "model": {"name": "mlp", "hidden": [64]}}
    return Run(f"stocfl/rates/{place}/{rate:g}", config | changed | BATCHED)


FIGURE3 = Table(
    name="stocfl-figure3",
    title="Robustness to the sample rate",
    paper=PAPER,
    protocol="The paper's figure is on rotated CIFAR-10 and prints no numbers. Here a small stand-in: rotated MNIST, "
    "400 clients x 150, MLP 784-64-10, 50 rounds, 5 epochs of batch 50; StoCFL with tau 0.5, the paper's for rotated "
    "data, which finds the four rotations at every rate. It was first run with 0.3, the value of Table 5's skews, with "
    "which the claim did not hold; 0.5 was taken after that was known. The first rows stay: with tau 0.3, at "
    "5 to 20 % StoCFL joins the rotations in pairs, and from 50 % on, where 200 clients and more are compared at "
    "once, it joins all of them, so that it is FedAvg. In all likelihood that is a chain: the more are compared, the "
    "sooner two rotations have some pair that is alike enough. local and oracle: everyone takes part.",
    tolerance=0.0,
    seeds=3,
    cells=tuple(
        Cell(method, f"{rate:.0%}", _rate_run(method, rate), last(), None) for method in METHODS_3 for rate in RATES
    )
    + baselines(
        *("", "stocfl/rates", _rate_run("fedavg", 1.0).config, {"accuracy": last()}), clusters=True, seconds=120
    ),
    claims=(
        Claim(
            "StoCFL is above FedAvg at every rate",
            lambda ours: all(ours(f"stocfl/{r:.0%}") > ours(f"fedavg/{r:.0%}") for r in RATES),
            place="section 3.2, Figure 3 (there on rotated CIFAR-10)",
        ),
    ),
)
TABLES = (FIGURE3, TABLE5, TABLE1, TABLE1_CIFAR)
