"""The suite's contenders: what each is told, and its configuration on a federation. Nothing is tuned.

Told are those that are given the number of clusters, the clusters themselves, or the best of five thresholds by test
score. The others get the clients' data and nothing else, as a user has it. NEWER are methods that came to the library
after the list was fixed; they are told nothing either, and ranked apart, so that the first ranking stays as declared.
"""

from __future__ import annotations

from dataclasses import dataclass

from papers.cell import Tree
from papers.suite.cases import Case

K_METHODS = ("wecfl", "ifca", "fesem", "fedgroup")
TAUS = (0.1, 0.3, 0.5, 0.7, 0.9)
BEST_TAU = "stocfl-best"  # the best tau by test score, federation by federation: no run of its own
WARM_UP = 0.3  # the share of the budget that FeSEM-CAM warms up for, as in its paper


@dataclass(frozen=True)
class Contender:
    """A method on every federation. They are run in the order of the list."""

    name: str
    method: Tree
    told: bool = False
    clustered: bool = False  # only where there are two or more kinds of clients: with one it would be FedAvg
    cost: float = 1.0  # seconds of a run, in those of FedAvg: measured, for an estimate

    def applies(self, case: Case) -> bool:
        """Whether it is run on this federation."""
        if (self.name == "oracle" and case.mixed) or (self.name == "fedrc" and case.score != "accuracy"):
            return False  # FedRC divides by how frequent a class is
        return not self.clustered or (case.clusters or 1) > 1

    def config(self, case: Case) -> Tree:
        """The method on this federation, with the true number of clusters where it is told, and what it changes."""
        method = {k: case.clusters if v == "true" else v for k, v in self.method.items()}
        if method["name"] == "stocfl":  # represented as in its authors' code: a single gradient finds little
            method["psi"] = {"epochs": 10, "batch": "full", "lr": case.local["lr"]}
        if method["name"] == "fedrep":  # head and body in turn, each for as many steps as others train both
            method["head_steps"] = case.local["steps"]
        if method["name"] != "fesem-cam":
            return {"method": method, "rounds": case.rounds}
        rounds, warmup = warmed_up(case)
        return {"method": {"name": "fesem-cam", "base": {"k": method["k"]}, "warmup": warmup}, "rounds": rounds}


def warmed_up(case: Case) -> tuple[int, int]:
    """Rounds and warm-up of FeSEM-CAM. All clients warm up, so that with few per round it takes many rounds' steps."""
    warmup = max(1, round(WARM_UP * case.rounds * case.participation))
    return case.rounds - round(warmup / case.participation), warmup


CONTENDERS = (
    Contender("halves", {"name": "halves"}, cost=2.0),
    Contender("fedavg", {"name": "fedavg"}),
    Contender("ditto", {"name": "ditto"}, cost=1.9),
    Contender("oracle", {"name": "oracle"}, told=True, clustered=True),
    Contender("wecfl-true", {"name": "wecfl", "k": "true"}, told=True, clustered=True),
    Contender("local", {"name": "local"}),
    Contender("fedem", {"name": "fedem"}, cost=3.0),
    Contender("cfl", {"name": "cfl"}),
    *(
        Contender(f"{name}-true", {"name": name, "k": "true"}, told=True, clustered=True, cost=1.2)
        for name in (*K_METHODS[1:], "fesem-cam")
    ),
    *(Contender(f"{name}-auto", {"name": name, "k": "auto"}, cost=1.2) for name in (*K_METHODS, "fesem-cam")),
    *(Contender(f"stocfl-{tau:g}", {"name": "stocfl", "tau": tau}, told=tau != 0.5, cost=2.0) for tau in TAUS),
)
NEWER = (
    Contender("clove-auto", {"name": "clove", "k": "auto"}, cost=1.5),
    Contender("fedrc", {"name": "fedrc"}, cost=4.0),
    Contender("pacfl", {"name": "pacfl"}, cost=1.2),
    Contender("flux-elbow", {"name": "flux", "k": "elbow"}, cost=1.2),
    Contender("fedclust-auto", {"name": "fedclust", "k": "auto"}, cost=1.2),
    Contender("fielding-silhouette", {"name": "fielding", "k": "silhouette"}, cost=1.2),
    Contender("feddrift", {"name": "feddrift"}, cost=2.0),
    Contender("fedper", {"name": "fedper"}),
    Contender("fedrep", {"name": "fedrep"}, cost=1.5),
    Contender("fedavgm", {"name": "fedavgm"}),
    Contender("fedadam", {"name": "fedadam"}),
)
