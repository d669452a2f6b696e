"""Hostile clients: the accuracy of honest ones against the share of hostile ones, with and without a defence."""

from __future__ import annotations

from papers.attack_page import LOST, claims, markdown, summary
from papers.attack_runs import DATA, KINDS, METHODS, WAYS, key, run_of, shares
from papers.cell import Cell, OwnPage, Table, last

PROTOCOL = (
    "Accuracy of the honest clients after the last round, in percent. Hostile ones are drawn from the seed; they know "
    "every honest answer. Undefended runs have the defaults, which reject updates longer than ten times the median. "
    "Defended ones have `aggregator: geometric-median` with its defaults, mixed ones `centered-clipping` with "
    "`mix: true` and `opposed: false`, the others `multi-krum`; where a method is told the number of clusters, it is "
    "told two more than there are."
)
TABLES = (
    Table(
        name="attacks",
        title="Hostile clients, with and without a defence",
        paper="no paper: this library's own",
        protocol=PROTOCOL,
        tolerance=LOST,
        cells=tuple(
            Cell(f"{data}/{method}/{way}", key(kind, share), run, last(), None)
            for data in DATA
            for method in METHODS
            for way in WAYS
            for kind, share in (("none", 0), *((kind, share) for kind in KINDS for share in shares(way)))
            for run in (run_of(data, method, kind, share, way),)
        ),
        own_page=OwnPage("attacks.md", claims, summary, markdown),
    ),
)
