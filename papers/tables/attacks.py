"""Hostile clients: the accuracy of honest ones against the share of hostile ones, with and without a defence."""

from __future__ import annotations

from papers.attacks import DATA, KINDS, METHODS, WAYS, claims, key, markdown, run_of, shares, summary
from papers.cell import Cell, OwnPage, last
from papers.declared import declared

TABLES = (
    declared(
        "attacks",
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
