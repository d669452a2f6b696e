"""The suite's federations, fixed before any method was tuned on them: a half to develop on, and one to report.

Learning rates and sizes are ordinary ones; rounds were chosen by time alone. No accuracy was looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from papers.cell import Tree

Half: TypeAlias = Literal["first", "second"]
SHOWN: Mapping[Half, str] = {"first": "first half", "second": "second half, seen"}  # as pages call them
SEEDS = 3
LAST = 3  # rounds at the end that a score is the mean of


@dataclass(frozen=True)
class Case:
    """A federation, what is trained on it and for how long; the same for every contender."""

    name: str
    data: Tree
    model: Tree
    local: Tree
    rounds: int
    participation: float
    clusters: int | None  # as many kinds of clients as there are; None: each client differs from each other
    crisp: bool = True  # clients of a kind are alike and the kinds apart, so that their number can be counted
    score: Literal["accuracy", "r2"] = "accuracy"

    @property
    def partition(self) -> Tree:
        """How samples, or those that were drawn, are spread over clients; the data's own settings if it makes them."""
        outer: Tree = self.data.get("partition", self.data)
        inner: Tree = outer.get("partition", outer)
        return inner

    @property
    def mixed(self) -> bool:
        """Whether clients are mixtures, which have no true clusters."""
        return bool(self.partition["name"] == "mixture")


def _part(name: str, samples: int, test: int, partition: Tree, **params: str) -> Tree:
    """A part of a data set that has an official test set."""
    return {
        "name": name,
        **params,
        "partition": {"name": "subsample", "samples": samples, "test_samples": test, "partition": partition},
    }


MLP: Tree = {"name": "mlp", "hidden": [64]}
LENET: Tree = {"name": "lenet"}
LINEAR: Tree = {"name": "linear"}
IMAGES: Tree = {"steps": 20, "batch": 20, "lr": 0.1}
DIGITS: Tree = {"steps": 10, "batch": 10, "lr": 0.1}
PHOTOGRAPHS: Tree = {"steps": 10, "batch": 10, "lr": 0.02, "momentum": 0.9}
SIGNALS: Tree = {"steps": 20, "batch": 32, "lr": 0.05}
NUMBERS: Tree = {"steps": 10, "batch": 10, "lr": 0.02}
SIXTY: Tree = {"steps": 20, "batch": 20, "lr": 0.02}

DEVELOPMENT = (
    Case(
        "digits-rotated-4",
        {"name": "digits", "partition": {"name": "rotated", "clients": 40, "test": 0.4}},
        *(MLP, DIGITS, 30, 1.0, 4),
    ),
    Case(
        "fmnist-shifted-4",
        _part("fashion-mnist", 6000, 3000, {"name": "shifted", "clients": 60}),
        *(MLP, IMAGES, 25, 0.5, 4),
    ),
    Case(
        "fmnist-swapped-4",
        _part("fashion-mnist", 8000, 3000, {"name": "swapped", "clients": 40}),
        *(MLP, IMAGES, 18, 1.0, 4),
    ),
    Case(
        "mnist-groups-4",
        _part("mnist", 4000, 3000, {"name": "pathological", "clients": 80}),
        *(MLP, IMAGES, 36, 0.25, 4),
    ),
    Case(
        "cifar-cluster-dirichlet-5",
        _part("cifar10", 8000, 4000, {"name": "cluster-dirichlet", "clients": 40, "clusters": 5}),
        *(LENET, PHOTOGRAPHS, 20, 0.25, 5),
    ),
    Case(
        "mnist-mixture-10-90",
        _part("mnist", 6000, 3000, {"name": "mixture", "clients": 60, "pattern": "10:90"}),
        *(MLP, IMAGES, 25, 0.5, 2),
        crisp=False,
    ),
    Case(
        "fmnist-dirichlet-0.1",
        _part("fashion-mnist", 5000, 3000, {"name": "dirichlet", "clients": 50, "alpha": 0.1}),
        *(MLP, IMAGES, 20, 1.0, None),
    ),
    Case(
        "fmnist-dirichlet-1",
        _part("fashion-mnist", 6000, 3000, {"name": "dirichlet", "clients": 100, "alpha": 1.0}),
        *(MLP, IMAGES, 35, 0.3, None),
    ),
    Case("mnist-iid", _part("mnist", 5000, 3000, {"name": "iid", "clients": 50}), MLP, IMAGES, 40, 0.2, 1),
    Case(
        "fmnist-quantity",
        _part("fashion-mnist", 6000, 3000, {"name": "quantity", "clients": 40}),
        *(MLP, IMAGES, 30, 0.5, 1),
    ),
    Case(
        "har-people",
        {"name": "uci-har", "partition": {"name": "natural", "test": 0.3}},
        *(MLP, SIGNALS, 15, 1.0, None),
    ),
    Case(
        "regression-4",
        {"name": "synthetic-regression", "clients": 80, "clusters": 4, "samples": [40, 80], "test": 0.5},
        *(LINEAR, NUMBERS, 30, 1.0, 4),
        score="r2",
    ),
)
HELD_OUT = (
    Case(
        "mnist-rotated-4",
        _part("mnist", 12000, 5000, {"name": "rotated", "clients": 200}),
        *(MLP, IMAGES, 60, 0.1, 4),
    ),
    Case(
        "mnist-rotated-6",
        _part("mnist", 7200, 3600, {"name": "rotated", "clients": 120, "angles": [0, 60, 120, 180, 240, 300]}),
        *(MLP, IMAGES, 36, 0.25, 6),
    ),
    Case(
        "digits-rotated-2",
        {"name": "digits", "partition": {"name": "rotated", "clients": 20, "angles": [0, 90], "test": 0.4}},
        *(MLP, DIGITS, 30, 1.0, 2),
    ),
    Case(
        "cifar-classes-3-2",
        _part("cifar10", 9000, 4000, {"name": "cluster-classes", "clients": 60, "clusters": 6}),
        *(LENET, PHOTOGRAPHS, 20, 0.2, 6),
        crisp=False,
    ),
    Case(
        "mnist-fmnist-hybrid",
        {
            "name": "mnist",
            "partition": {
                "name": "hybrid",
                "clients": 400,
                "other": {"name": "fashion-mnist", "normalise": "unit"},
            },
        },
        *(MLP, IMAGES, 50, 0.1, 2),
    ),
    Case(
        "mnist-rotated-classes-8",
        _part("mnist", 9600, 4000, {"name": "rotated-classes", "clients": 160}),
        *(MLP, IMAGES, 16, 0.5, 8),
    ),
    Case(
        "fmnist-mixture-30-70",
        _part("fashion-mnist", 6000, 3000, {"name": "mixture", "clients": 60, "pattern": "30:70"}),
        *(MLP, IMAGES, 15, 1.0, 2),
        crisp=False,
    ),
    Case(
        "mnist-dirichlet-0.1",
        _part("mnist", 6000, 4000, {"name": "dirichlet", "clients": 100, "alpha": 0.1}),
        *(MLP, IMAGES, 40, 0.2, None),
    ),
    Case(
        "mnist-dirichlet-1",
        _part("mnist", 2000, 3000, {"name": "dirichlet", "clients": 40, "alpha": 1.0}),
        *(MLP, IMAGES, 20, 1.0, None),
    ),
    Case("fmnist-iid", _part("fashion-mnist", 8000, 3000, {"name": "iid", "clients": 200}), MLP, IMAGES, 60, 0.1, 1),
    Case(
        "mnist-quantity",
        _part("mnist", 6000, 3000, {"name": "quantity", "clients": 100}),
        *(MLP, IMAGES, 35, 0.3, 1),
    ),
    Case(
        "synthetic-1-1",
        {"name": "synthetic", "clients": 100, "alpha": 1.0, "beta": 1.0, "test": 0.2},
        *(LINEAR, SIXTY, 40, 0.3, None),
    ),
)
CASES: tuple[tuple[Half, Case], ...] = (
    *(("first", case) for case in DEVELOPMENT),
    *(("second", case) for case in HELD_OUT),
)
