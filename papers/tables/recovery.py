"""Whether each method with its defaults finds four hidden clusters of digits: a first run, no paper's table.

Methods with one model for all (or none) have no clusters to find, and a personal head is all of a linear model.
"""

from __future__ import annotations

from papers.cell import Cell, Run, Table, Tree, last

SHARES = {"100 %": 1.0, "20 %": 0.2}
ROTATED: Tree = {"name": "rotated", "clients": 40}
KINDS: dict[str, Tree] = {  # the other ways in which four clusters may differ
    "shifted": {"name": "shifted", "clients": 40},
    "class groups": {"name": "pathological", "clients": 40},
    "cluster-Dirichlet": {"name": "cluster-dirichlet", "clients": 40, "clusters": 4},
}
METHODS: dict[str, Tree] = {
    name: {"name": name}
    for name in (
        *("halves", "stocfl", "cfl", "ifca", "fesem", "wecfl", "fl+hc", "fedgroup", "fedgrouprox", "composed"),
        *("fedem", "fedsoft", "ifca-cam", "fesem-cam", "wecfl-cam", "fedgroup-cam", "stocfl-cam", "cfl-cam"),
        *("clove", "fedrc", "feddrift", "fedclust", "pacfl", "fielding", "flux"),
    )
} | {f"{name}, k: auto": {"name": name, "k": "auto"} for name in ("ifca", "fesem", "wecfl", "fl+hc", "fedgroup")}


def _run(method: str, what: Tree, share: str, kind: str = "") -> Run:
    rounds = 15 if kind else 30
    config: Tree = {
        "data": {"name": "digits", "partition": KINDS.get(kind, ROTATED)},
        "model": {"name": "linear"},
        "method": what,
        "local": {"epochs": 5, "batch": 8, "lr": 0.1},
        "rounds": rounds,
        "participation": SHARES[share],
        "evaluate_every": rounds,
        "evaluate_last": 1,
        "engine": {"name": "batched", "workers": 1},
    }
    place = method.replace(", k: ", "-").replace("+", "plus")
    within = f"-{kind.lower().replace(' ', '-')}" if kind else ""
    return Run(f"recovery{within}/{place}/{share.removesuffix(' %')}", config)


TABLES = (
    Table(
        name="recovery",
        title="The demo's four clusters, by every method's defaults",
        paper="this library",
        protocol="`coterie run method.name=...` and nothing else: 1,797 digits of 8x8 pixels, turned by 0, 90, 180 and "
        "270 degrees, 40 clients of about 36 samples, a linear model, 30 rounds of 5 epochs. ARI is 1 where the "
        "clusters are the true ones, about 0 where they are no better than chance. The default k is the papers': 3 of "
        "FedGroup and FedEM and 2 of FedSoft are fewer than there are clusters here, 4 elsewhere.",
        tolerance=0.0,
        unit="",
        seeds=5,
        cells=tuple(
            Cell(method, f"{share} {what}", _run(method, tree, share), last(1, column, 1.0), None)
            for method, tree in METHODS.items()
            for share in SHARES
            for what, column in (("ARI", "ari"), ("clusters", "clusters"))
        ),
    ),
    Table(
        name="recovery-kinds",
        title="Four clusters that differ in labels or classes, by every method's defaults",
        paper="this library",
        protocol="As `recovery`, with 15 rounds: labels shifted by 0, 3, 6 and 9 (P(y|x) differs, nothing else); each "
        "cluster with its own classes (0-2, 3-4, 5-6, 7-9); cluster-wise Dirichlet(0.1, 10) shares of classes. FedRC "
        "parts clients by P(y|x) alone, so 0 is right for it where classes differ; PACFL, Fielding and FLUX look at "
        "inputs or labels, not at both together (FLUX: by label), so labels that are called otherwise may escape them.",
        tolerance=0.0,
        unit="",
        seeds=3,
        cells=tuple(
            Cell(method, f"{kind} {share} ARI", _run(method, tree, share, kind), last(1, "ari", 1.0), None)
            for method, tree in METHODS.items()
            for kind in KINDS
            for share in SHARES
        ),
    ),
)
