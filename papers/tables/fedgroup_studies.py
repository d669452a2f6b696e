"""FedGroup: the inter-group learning rate, which the paper studies without numbers, and the authors' Glorot start."""

from __future__ import annotations

from papers.cell import Cell, Claim, Run, best, rounds_to
from papers.declared import declared
from papers.tables.fedgroup import run_of

RATES = (0.0, 0.001, 0.01, 0.1)
TARGET = 0.9


def _rate_run(rate: float) -> Run:
    run = run_of("mnist-mclr", "fg-edc")
    if rate == 0.0:
        return run
    method = run.config["method"] | {"eta_g": rate}
    return Run(f"fedgroup/eta-g/{rate:g}", run.config | {"method": method}, seconds=45)


ETA_G = declared(
    "fedgroup-eta-g",
    cells=tuple(
        cell
        for rate in RATES
        for cell in (
            Cell(f"eta_g {rate:g}", "max accuracy", _rate_run(rate), best(), None),
            Cell(f"eta_g {rate:g}", "rounds to 90 %", _rate_run(rate), rounds_to(TARGET), None),
        )
    ),
    claims=(
        Claim(
            "some eta_g above 0 reaches 90 % in fewer rounds than 0 (slightly improves the convergence rate)",
            lambda ours: (
                min(ours(f"eta_g {rate:g}/rounds to 90 %") for rate in RATES if rate) < ours("eta_g 0/rounds to 90 %")
            ),
            place="section IV-B, last but one paragraph",
        ),
    ),
)
STARTED = ("fedavg", "fg-edc")


def _glorot_run(row: str, column: str) -> Run:
    run = run_of(row, column)
    model = run.config["model"] | {"init": "glorot"}
    return Run(f"fedgroup/{row}-glorot/{column}", run.config | {"model": model}, seconds=90)


GLOROT = declared(
    "fedgroup-glorot",
    cells=tuple(
        Cell(row, column, _glorot_run(row, column), best(), paper)
        for row, printed in (("mnist-mclr", (89.8, 96.0)), ("mnist-mlp", (95.3, 97.9)))
        for column, paper in zip(STARTED, printed, strict=True)
    ),
    claims=(
        Claim(
            "FG-EDC is above FedAvg with both models",
            lambda ours: all(ours(f"{row}/fg-edc") > ours(f"{row}/fedavg") for row in ("mnist-mclr", "mnist-mlp")),
            place="section IV-B, Table III",
        ),
    ),
)
TABLES = (ETA_G, GLOROT)
