"""WeCFL, Figures 5, 7 and 8: clients' models in two dimensions, and their clusters, in the first five rounds."""

from __future__ import annotations

import dataclasses

import numpy as np

from papers.cell import Cell, Claim, Outcome, Run
from papers.declared import declared
from papers.tables.wecfl import MINUTES, SHOWN, place_of, run_of

PARTITION = "(0.1, 10)"
ROUNDS = (1, 2, 3, 4, 5)
FIGURE7 = {t: ("fmnist", 10, t) for t in ROUNDS}
FIGURE8 = {t: ("fmnist", 3, t) for t in ROUNDS}
FIGURE5 = ("cifar", 10, 5)  # beside the last panel of Figure 7


def run_after(data: str, k: int, rounds: int) -> Run:
    """WeCFL, ended after so many rounds."""
    run = run_of(data, PARTITION, k, "wecfl")
    config = run.config | {"rounds": rounds, "evaluate_every": 1}
    seconds = 60 * MINUTES[data] * rounds / 100
    name = f"{place_of(data, PARTITION)}/k{k}-wecfl-after-{rounds}"
    return dataclasses.replace(run, name=name, config=config, probe="tsne", seconds=seconds)


def agreement(outcome: Outcome) -> list[float]:
    """The adjusted Rand index of found and generating clusters."""
    from sklearn.metrics import adjusted_rand_score

    return [float(adjusted_rand_score(outcome.probe["truth"], outcome.probe["labels"]))]


def whole(outcome: Outcome) -> list[float]:
    """The share of generating clusters all of whose clients are in one found cluster."""
    labels, truth = np.asarray(outcome.probe["labels"]), np.asarray(outcome.probe["truth"])
    return [float(np.mean([len(np.unique(labels[truth == t])) == 1 for t in np.unique(truth)]))]


def _cells(data: str, k: int, t: int) -> tuple[Cell, Cell]:
    run = run_after(data, k, t)
    row = f"{SHOWN[data]} K={k} round {t}"
    return Cell(row, "ARI", run, agreement, None), Cell(row, "kept whole", run, whole, None)


TSNE = declared(
    "wecfl-tsne",
    cells=tuple(cell for panel in (*FIGURE7.values(), *FIGURE8.values(), FIGURE5) for cell in _cells(*panel)),
    claims=(
        Claim(
            "K=10: the clusters are the generating ones after one round",
            lambda ours: ours("Fashion-MNIST K=10 round 1/ARI") == 1.0,
            place="appendix B.2, Figure 7",
        ),
        Claim(
            "K=10: and after five",
            lambda ours: ours("Fashion-MNIST K=10 round 5/ARI") == 1.0,
            place="section 8.3, Figure 5, and appendix B.2, Figure 7",
        ),
        Claim(
            "K=10 on CIFAR-10: the clusters are the generating ones after five rounds",
            lambda ours: ours("CIFAR-10 K=10 round 5/ARI") == 1.0,
            place="section 8.3, Figure 5",
        ),
        Claim(
            "K=3: from the third round on no generating cluster is broken up",
            lambda ours: all(ours(f"Fashion-MNIST K=3 round {t}/kept whole") == 1.0 for t in ROUNDS[2:]),
            place="appendix B.2, Figure 8",
        ),
    ),
)
TABLES = (TSNE,)
