"""StoCFL: the clusters it finds unaided, what a client's representation has to do with that, and tau (Figure 7)."""

from __future__ import annotations

from papers.cell import Cell, Claim, Run, Table, Tree, last
from papers.tables.stocfl import BATCHED, METHODS_1, MNIST, PAPER, RECOMPUTED, SKEWS, TEN_EPOCHS, config_of

# Which clients belong together is decided by the anchor's gradient alone, so local training is one small step.
_LOCAL: Tree = {"steps": 1, "batch": 32, "lr": 0.1}
_SMALL: Tree = {"name": "mlp", "hidden": [256]}


def _found_run(skew: str, tau: float, data: Tree) -> Run:
    config = config_of(data, {"name": "stocfl", "tau": tau, "lam": 0.05}, _LOCAL, 50, 5)
    return Run(f"stocfl/clusters/{skew}/tau-{tau:g}", config | {"model": _SMALL}, seconds=90)


# ----------------------------------------------------------------------------------------------- the four skews

TRUE = {"pathological": 4, "rotated": 4, "shifted": 4, "hybrid": 2}
TAU = {
    "pathological": 0.3,
    "rotated": 0.5,
    "shifted": 0.3,
    "hybrid": 0.3,
}
_FIRST = "run first, with the value of the other skews; the paper has 0.5 for rotated data (section 3.2, IFCA setting)"


def _pair(row: str, run: Run, clusters: float | None, note: str = "") -> tuple[Cell, Cell]:
    return (
        Cell(row, "clusters", run, last(1, "clusters", 1.0), clusters, note=note),
        Cell(row, "ARI", run, last(1, "ari", 1.0), None, note=note),
    )


RECOVERY = Table(
    name="stocfl-clusters",
    title="Clusters that StoCFL finds unaided on the four skews, and their agreement with the hidden ones",
    paper=PAPER,
    protocol="As the paper has it (the gradient of the anchor represents a client, clusters by all their members), "
    "10 % of the clients a round, 50 rounds; MLP 784-256-10; tau 0.5 for rotated images, as in the paper (section 3.2, "
    "IFCA setting), and 0.3 for the other skews, for which the paper prints none. Which clients belong together "
    "depends on the anchor's gradient alone, so local training is cut to one step. With tau 0.3, which was run first, "
    "two opposite rotations are merged with seed 2 (sizes 100, 200, 100): their clients' gradients have cosines of up "
    "to 0.33, those of one rotation of 0.67 and more.",
    tolerance=0.0,
    seeds=3,
    unit="",
    cells=(
        *(
            cell
            for skew, k in TRUE.items()
            for cell in _pair(skew, _found_run(skew, TAU[skew], SKEWS[skew][0]), float(k))
        ),
        *_pair("rotated tau 0.3", _found_run("rotated", 0.3, SKEWS["rotated"][0]), None, _FIRST),
    ),
    claims=(
        Claim(
            "the true number of clusters is found on all four skews",
            lambda ours: all(ours(f"{skew}/clusters") == k for skew, k in TRUE.items()),
            place="section A.1, Figure 6",
        ),
        Claim(
            "and they are the hidden ones",
            lambda ours: all(ours(f"{skew}/ARI") == 1.0 for skew in TRUE),
            place="section A.1, Figure 6",
        ),
    ),
)

# ------------------------------------------------------------------------------------- few samples per client

PAPERS: Tree = METHODS_1["stocfl"]
LONGER: Tree = {"psi": TEN_EPOCHS}
FEW: dict[str, tuple[Tree, str]] = {
    "as printed": (PAPERS, "Algorithm 1: one gradient, pairs above tau are merged at once"),
    "recomputed means": (RECOMPUTED, "one gradient; a merged cluster's mean is compared anew before the next merge"),
    "ten epochs": (PAPERS | LONGER, "ten local epochs represent a client, as in the authors' code"),
    "both": (RECOMPUTED | LONGER, "ten epochs, and recomputed means"),
}
SIZES = {"4800x50": 4800, "1200x200": 1200}


def few_run(row: str, size: str) -> Run:
    """One row: who is grouped with whom, nothing is trained for long."""
    data = MNIST | {"partition": {"name": "rotated", "clients": SIZES[size], "reuse": True}}
    config = config_of(data, FEW[row][0], _LOCAL, 40, 10) | {"model": _SMALL, "checkpoint_every": 100} | BATCHED
    place = row.replace(" ", "-")
    return Run(f"stocfl/few/{size}/{place}", config, seconds=300)


FEW_SAMPLES = Table(
    name="stocfl-few-samples",
    title="Rotated MNIST with few images per client: what a client's representation and the merging rule decide",
    paper=PAPER,
    protocol="The federations of stocfl-table1, tau 0.5, 10 % of the clients a round, 40 rounds, MLP 784-256-10 and "
    "local training cut to one step, since clusters do not depend on it. In stocfl-table1, with a hidden layer of "
    "2,048, 4,763 of the 4,800 clients end in one cluster. The supposition was that single pairs of clients of two "
    "rotations lie above tau by chance, and that one such pair joins them (single linkage), as Algorithm 1 does not "
    "compare a merged cluster anew. With the narrow network of these rows that does not happen: each rule finds the "
    "four rotations, but for a few clients that stay alone. So the supposition is not confirmed. Our guess now is the "
    "network's width; stocfl-recomputed and stocfl-ten-epochs in stocfl-table1, which have the wide one, would tell. "
    "The paper reports four clusters at all sizes (Table 1).",
    tolerance=0.0,
    unit="",
    cells=tuple(
        cell
        for size in SIZES
        for row, (_, note) in FEW.items()
        for cell in _pair(f"{size} {row}", few_run(row, size), 4.0 if row == "as printed" else None, note)
    ),
    claims=(
        Claim(
            "4800x50: with ten epochs the four rotations are found (ARI 1)",
            lambda ours: ours("4800x50 ten epochs/ARI") == 1.0,
            place="not the paper's: the authors' code",
        ),
        Claim(
            "4800x50: recomputed means agree better with the rotations than Algorithm 1 as printed",
            lambda ours: ours("4800x50 recomputed means/ARI") > ours("4800x50 as printed/ARI"),
            place="not the paper's: our explanation",
        ),
    ),
    why="four large clusters in every row, but up to 23 of 4,800 clients stay alone; our explanation is not confirmed",
)

# ---------------------------------------------------------------------------------------------------- Figure 7

_BOTH: Tree = MNIST | {"partition": {"name": "rotated-classes", "clients": 400, "angles": [0, 180], "reuse": True}}
TAUS = (-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
FIGURE7 = Table(
    name="stocfl-figure7",
    title="What tau decides: clusters found among 2 rotations x 4 groups of classes",
    paper=PAPER,
    protocol="400 clients, two rotations times four groups of classes; the rest as for stocfl-clusters. The paper "
    "finds the groups of classes below tau 0.67, whatever the rotation, and both above 0.76; where the borders lie "
    "depends on model and representation. An earlier version of this page held it against the paper that no tau gives "
    "2 clusters (the rotations): the paper does not say so.",
    tolerance=0.0,
    unit="",
    seeds=3,
    cells=tuple(
        Cell("clusters", f"tau {tau:g}", _found_run("rotated-classes", tau, _BOTH), last(1, "clusters", 1.0), None)
        for tau in TAUS
    ),
    claims=(
        Claim(
            "there is a tau with 4 clusters below 0.67, and a larger one with 8",
            lambda ours: any(
                round(ours(f"clusters/tau {low:g}")) == 4 and round(ours(f"clusters/tau {high:g}")) == 8
                for low in TAUS
                for high in TAUS
                if low < 0.67 and low < high
            ),
            place="section A.2, Figure 7",
        ),
        Claim(
            "a higher tau never makes fewer clusters",
            lambda ours: (
                sorted(ours(f"clusters/tau {tau:g}") for tau in TAUS) == [ours(f"clusters/tau {tau:g}") for tau in TAUS]
            ),
            place="section A.2: a higher tau clusters in a more fine-grained way",
        ),
    ),
)
TABLES = (RECOVERY, FIGURE7, FEW_SAMPLES)
