"""The suite's federations, fixed before any method was tuned on them: a half to develop on, and one to report.

federations.yaml has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from papers.cell import Tree
from papers.declared import data

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
    seconds: float  # of FedAvg's rounds, about
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


def _case(name: str, declared: Tree) -> Case:
    known, run = data("suite/federations"), declared["run"]
    model, local = known["models"][run["model"]], known["local"][run["local"]]
    return Case(name, **run | {"data": declared["data"], "model": model, "local": local})


HALVES: tuple[Half, ...] = ("first", "second")
CASES: tuple[tuple[Half, Case], ...] = tuple(
    (half, _case(name, declared)) for half in HALVES for name, declared in data("suite/federations")[half].items()
)
