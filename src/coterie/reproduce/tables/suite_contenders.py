"""The suite's contenders: what each is told, and its configuration on a federation. Nothing is tuned.

Told are those that are given the number of clusters, the clusters themselves, or the best of five thresholds by test
score. The others get the clients' data and nothing else, as a user has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from coterie.reproduce.cell import Tree
from coterie.reproduce.tables.suite_cases import Case

K_METHODS = ("wecfl", "ifca", "fesem", "fedgroup")
TAUS = (0.1, 0.3, 0.5, 0.7, 0.9)
BEST_TAU, DEFAULT_TAU = "stocfl best tau", "stocfl tau 0.5"  # the first is told; it has no run of its own
WARM_UP = 0.3  # the share of the budget that FeSEM-CAM warms up for, as in its paper


@dataclass(frozen=True)
class Contender:
    """A method on every federation. The earlier its wave, the earlier it is run."""

    name: str
    method: Tree
    wave: int
    told: bool = False
    needs: str = ""  # "clusters": only where there are two or more kinds of clients
    cost: float = 1.0  # seconds of a run, in those of FedAvg: measured, for an estimate

    def applies(self, case: Case) -> bool:
        """Whether there is something to tell it; one true cluster would make of it FedAvg."""
        return self.needs != "clusters" or (case.clusters or 1) > 1

    def config(self, case: Case) -> Tree:
        """The method on this federation, with the true number of clusters where it is told, and what it changes."""
        method = {k: case.clusters if v == "true" else v for k, v in self.method.items()}
        if method["name"] == "stocfl":  # represented as in its authors' code: a single gradient finds little
            method["psi"] = {"epochs": 10, "batch": "full", "lr": case.local["lr"]}
        if method["name"] != "fesem-cam":
            return {"method": method, "rounds": case.rounds}
        rounds, warmup = warmed_up(case)
        return {"method": {"name": "fesem-cam", "base": {"k": method["k"]}, "warmup": warmup}, "rounds": rounds}


def warmed_up(case: Case) -> tuple[int, int]:
    """Rounds and warm-up of FeSEM-CAM. All clients warm up, so that with few per round it takes many rounds' steps."""
    warmup = max(1, round(WARM_UP * case.rounds * case.participation))
    return case.rounds - round(warmup / case.participation), warmup


CONTENDERS = (
    Contender("halves", {"name": "halves"}, 0, cost=2.0),
    Contender("fedavg", {"name": "fedavg"}, 0),
    Contender("ditto", {"name": "ditto"}, 0, cost=1.9),
    Contender("oracle", {"name": "oracle"}, 0, told=True, needs="clusters"),
    Contender("wecfl true K", {"name": "wecfl", "k": "true"}, 0, told=True, needs="clusters"),
    Contender("local", {"name": "local"}, 1),
    Contender("fedem", {"name": "fedem"}, 1, cost=3.0),
    Contender("cfl", {"name": "cfl"}, 1),
    *(
        Contender(f"{name} true K", {"name": name, "k": "true"}, 2, told=True, needs="clusters", cost=1.2)
        for name in (*K_METHODS[1:], "fesem-cam")
    ),
    *(Contender(f"{name} auto K", {"name": name, "k": "auto"}, 3, cost=1.2) for name in (*K_METHODS, "fesem-cam")),
    *(Contender(f"stocfl tau {tau:g}", {"name": "stocfl", "tau": tau}, 4, tau != 0.5, cost=2.0) for tau in TAUS),
)
