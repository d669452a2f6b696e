"""Whether each method with its defaults finds the demo's four hidden clusters: a first run, no paper's table."""

from __future__ import annotations

from coterie.reproduce.cell import Cell, Run, Table, Tree, last

SHARES = {"100 %": 1.0, "20 %": 0.2}
METHODS: dict[str, Tree] = {
    name: {"name": name}
    for name in (
        *("halves", "stocfl", "cfl", "ifca", "fesem", "wecfl", "fl+hc", "fedgroup", "fedgrouprox", "composed"),
        *("fedem", "fedsoft", "ifca-cam", "fesem-cam", "wecfl-cam", "fedgroup-cam", "stocfl-cam", "cfl-cam"),
    )
} | {f"{name}, k: auto": {"name": name, "k": "auto"} for name in ("ifca", "fesem", "wecfl", "fl+hc", "fedgroup")}


def _run(method: str, what: Tree, share: str) -> Run:
    config: Tree = {
        "data": {"name": "digits", "partition": {"name": "rotated", "clients": 40}},
        "model": {"name": "linear"},
        "method": what,
        "local": {"epochs": 5, "batch": 8, "lr": 0.1},
        "rounds": 30,
        "participation": SHARES[share],
        "evaluate_every": 30,
        "evaluate_last": 1,
        "engine": {"name": "batched", "workers": 1},
    }
    place = method.replace(", k: ", "-").replace("+", "plus")
    return Run(f"recovery/{place}/{share.removesuffix(' %')}", config)


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
)
