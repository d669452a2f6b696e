"""The runs of WeCFL's and Fed-CAM's tables: the same clients, models and budget, so each is made once."""

from __future__ import annotations

from papers.cell import Run, Tree

DATA: dict[str, tuple[Tree, Tree]] = {
    "cifar": ({"name": "cifar10", "normalise": "symmetric"}, {"name": "lenet"}),
    "fmnist": ({"name": "fashion-mnist", "normalise": "symmetric"}, {"name": "cnn", "batch_statistics": 32}),
}
SHOWN = {"cifar": "CIFAR-10", "fmnist": "Fashion-MNIST"}
PARTITIONS: dict[str, Tree] = {
    "(0.1, 10)": {"name": "cluster-dirichlet", "clients": 200, "clusters": 10, "between": 0.1, "within": 10.0},
    "(3, 2)": {"name": "cluster-classes", "clients": 200, "clusters": 10, "between": 3, "within": 2},
    "0.1": {"name": "dirichlet", "clients": 200, "alpha": 0.1},
    "2-class": {"name": "classes", "clients": 200, "n": 2},
    # As the authors' loader of December 2022 does: shares cut to two decimals, clients without enough are copies.
    "0.1 floored": {"name": "dirichlet", "clients": 200, "alpha": 0.1, "decimals": 2, "poor": "duplicate"},
}
KMEANS: Tree = {"features": "last_weight", "kmeans": "fresh", "weights": "size"}
LOCAL: Tree = {"steps": 10, "batch": 32, "lr": 0.001, "momentum": 0.9, "keep_optimizer": True}
PLAIN: Tree = LOCAL | {"momentum": 0.0, "keep_optimizer": False}
LAMBDAS = (0.001, 0.01, 0.1)  # of which the paper took the best
SEEDS = 3  # of the runs below, on CIFAR-10 with K=10; the others take one
MORE_SEEDS = {
    "(0.1, 10)": ("fedavg", "fedprox", "ifca", "fesem", "wecfl", "ifca-cam", "fesem-cam", "fesem-cam-0.01"),
    "0.1": ("fesem", "wecfl"),
    "2-class": ("fesem", "wecfl"),
}
# Of processor time, one model for all, by a few rounds of wecfl and fesem-cam with compiled code; see `_times`.
MINUTES = {"cifar": 2.5, "fmnist": 17}


def _papers_cam(k: int, lam: float) -> tuple[Tree, Tree]:
    """FeSEM-CAM as the paper has it: both models from the round's start, k-means by n_i on all linear layers.

    A local warm-up takes no rounds here, so that 70 rounds are the paper's 100.
    """
    base = {"name": "fesem", "k": k, "features": "classifier", "kmeans_weights": "size", "weights": "size"}
    return {"name": "cam", "base": base, "warmup": 30, "warmup_by": "local", "lam": lam}, {"rounds": 70}


def _methods(k: int) -> dict[str, tuple[Tree, Tree]]:
    """Method and changes to the run, by name."""
    return {
        "fedavg": ({"name": "fedavg"}, {}),
        "fedprox": ({"name": "fedprox", "mu": 0.95}, {}),
        "fedavg+": ({"name": "fedavg+", "k": k, "voting": "soft"}, {}),
        "fedprox+": ({"name": "fedprox+", "k": k, "mu": 0.95, "voting": "soft"}, {}),
        "ifca": ({"name": "ifca", "k": k}, {"local": LOCAL | {"keep_optimizer": False}}),
        "fesem": ({"name": "fesem-authors", "k": k} | KMEANS, {}),
        "fesem-plain": ({"name": "fesem-authors", "k": k} | KMEANS, {"local": PLAIN}),
        "wecfl": ({"name": "wecfl-authors", "k": k} | KMEANS, {}),
        "ifca-cam": ({"name": "cam", "base": {"name": "ifca", "k": k}, "warmup": 30}, {}),
        **{f"fesem-cam-{lam:g}": _papers_cam(k, lam) for lam in LAMBDAS},
        "fesem-cam": (  # the authors' order; as in `fesem-cam-...` 70 rounds are 100
            {
                "name": "cam-authors",
                "base": {"name": "fesem-authors", "k": k} | KMEANS,
                "warmup": 30,
                "warmup_by": "local_unclustered",
                "order": "global_first",
            },
            {"rounds": 70},
        ),
        "ifca-cam-authors": (
            {
                "name": "cam-authors",
                "base": {"name": "ifca-authors", "k": k, "weights": "size", "choose_by": "accuracy"},
                "warmup": 30,
                "order": "cluster_first",
                "score": "alone",
            },
            {},
        ),
    }


def _times(method: str, k: int) -> float:
    """How long it takes, in runs of FedAvg."""
    if method.endswith("+"):
        return float(k)
    if "ifca" in method:  # beside training every client looks at all models' losses
        return 1 + k / 4
    return 2.3 if "cam" in method else 1.0


def place_of(data: str, partition: str) -> str:
    """Where a setting's runs lie."""
    return f"wecfl/{data}/{partition.strip('()').replace(', ', '-').replace(' ', '-')}"


def setting(data: str, partition: str) -> Tree:
    """A run without its method."""
    source, model = DATA[data]
    return {
        "data": source | {"partition": PARTITIONS[partition]},
        "model": model,
        "local": LOCAL,
        "rounds": 100,
        "evaluate_every": 10,
        "evaluate_last": 3,
        "weigh_clients": "train",
        "engine": {"name": "batched", "workers": 1},  # compiled code for small CNNs: several times as fast
        "checkpoint_every": 25,
    }


def run_of(data: str, partition: str, k: int, method: str) -> Run:
    """A method in a setting."""
    what, changes = _methods(k)[method]
    config = setting(data, partition) | {"method": what}
    group = method if method in ("fedavg", "fedprox") else f"k{k}-{method}"
    shown = (data, partition, group) == ("cifar", "(0.1, 10)", "k10-wecfl")
    if (data, method) == ("fmnist", "fesem-cam"):
        config["local"] = PLAIN
    seconds = 60 * MINUTES[data] * _times(method, k)
    seeds = SEEDS if data == "cifar" and k in (1, 10) and (method in MORE_SEEDS.get(partition, ())) else 1
    return Run(
        f"{place_of(data, partition)}/{group}",
        *(config | changes, "alike" if shown else ""),
        seconds=seconds,
        seeds=seeds,
    )
