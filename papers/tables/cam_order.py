"""Fed-CAM: what the order of training within a visit decides, in small; the tables' 200 clients take hours."""

from __future__ import annotations

from papers.cell import Cell, Claim, Outcome, Run, Tree, last
from papers.declared import declared
from papers.tables.wecfl import setting

K = 5
ORDERS = {
    "simultaneous": "the paper's: both models train from the round's start (Algorithm 1)",
    "cluster_first": "the cluster's model, then the global one on what its result leaves (authors' IFCA-CAM)",
    "global_first": "the global model, then the cluster's on what its client's own result leaves (authors' FeSEM-CAM)",
}


def run_of(order: str) -> Run:
    """Everything else is alike, and as the paper says."""
    base: Tree = {"name": "fesem", "k": K, "features": "classifier", "kmeans_weights": "size", "weights": "size"}
    method: Tree = {"name": "cam-authors", "base": base, "warmup": 5, "warmup_by": "local", "lam": 0.01, "order": order}
    config = setting("fmnist", "(0.1, 10)")
    partition = config["data"]["partition"] | {"clients": 20, "clusters": K}
    changed: Tree = {
        "data": config["data"] | {"partition": partition},
        "method": method,
        "rounds": 20,
        "evaluate_every": 5,
        "evaluate_last": 1,
        "checkpoint_every": 10,
    }
    return Run(f"wecfl/fmnist/order/{order}", config | changed, seconds=240)


def first_loss(outcome: Outcome) -> list[float]:
    """The loss when it was first looked at."""
    return [float(outcome.column("loss")[0])]


def _cells(order: str, note: str) -> tuple[Cell, ...]:
    run = run_of(order)
    return (
        Cell(order, "loss after 5 rounds", run, first_loss, None, note=note),
        Cell(order, "loss after 20", run, last(1, "loss", 1.0), None, note=note),
        Cell(order, "accuracy after 20", run, last(), None, note=note),
    )


ORDER = declared(
    "cam-order",
    cells=tuple(cell for order, note in ORDERS.items() for cell in _cells(order, note)),
    claims=(
        Claim(
            "in the paper's order the loss falls",
            lambda ours: ours("simultaneous/loss after 20") < ours("simultaneous/loss after 5 rounds"),
            place="ours: Algorithm 1 is run as printed",
        ),
        Claim(
            "with the global model first it rises",
            lambda ours: ours("global_first/loss after 20") > ours("global_first/loss after 5 rounds"),
            place="ours: the authors' code",
        ),
        Claim(
            "the paper's order ends more accurate than either of the authors'",
            lambda ours: (
                ours("simultaneous/accuracy after 20")
                > max(ours("cluster_first/accuracy after 20"), ours("global_first/accuracy after 20"))
            ),
            place="ours",
        ),
    ),
)
TABLES = (ORDER,)
