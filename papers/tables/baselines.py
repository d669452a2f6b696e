"""Rows that every table needs beside the paper's: a constant answer, each client alone, and the true clusters."""

from __future__ import annotations

from collections.abc import Mapping

from papers.cell import Cell, Reading, Run, Tree, probed

NOTES = {
    "majority": "not in the paper: each client always answers the class that it has most of",
    "local": "not in the paper: each client trains alone, with the same budget",
    "oracle": "not in the paper: FedAvg in each of the generating clusters, which no method knows",
}


def majority(place: str, config: Tree) -> Run:
    """One step, so that there is a run; what is measured needs no training."""
    once = config | {"method": {"name": "local"}, "rounds": 1, "local": {"steps": 1, "batch": 1, "lr": 0.001}}
    return Run(f"{place}/majority", once, "majority", seconds=30)


def alone(place: str, config: Tree, seconds: float | None = None) -> Run:
    """Each client for itself."""
    return Run(f"{place}/local", config | {"method": {"name": "local"}}, seconds=seconds)


def oracle(place: str, config: Tree, seconds: float | None = None) -> Run:
    """FedAvg in each generating cluster."""
    return Run(f"{place}/oracle", config | {"method": {"name": "oracle"}}, seconds=seconds)


def baselines(
    prefix: str, place: str, config: Tree, read: Mapping[str, Reading], *, clusters: bool, seconds: float | None = None
) -> tuple[Cell, ...]:
    """The rows, under names that begin with `prefix`. read: by column; clusters: whether there are generating ones."""
    runs = {"majority": majority(place, config), "local": alone(place, config, seconds)}
    if clusters:
        runs["oracle"] = oracle(place, config, seconds)
    cells = []
    for name, run in runs.items():
        for column, reading in read.items():
            how = probed("majority", column, scale=100.0) if name == "majority" else reading
            cells.append(Cell(f"{prefix}{name}", column, run, how, None, note=NOTES[name]))
    return tuple(cells)
