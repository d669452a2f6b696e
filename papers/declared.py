"""What is declared as data: the words, tolerances and seeds of tables, and printed numbers, as YAML files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from papers.cell import Cell, Claim, More, OwnPage, Table, Tree

HERE = Path(__file__).parent
TEXTS = "tables/texts"  # parts of protocols that several tables share


@cache
def data(name: str) -> Any:
    """A file of data, by its place in this package."""
    return yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))


def printed(paper: str) -> Any:
    """The numbers that a paper prints."""
    return data(f"printed/{paper}")


@cache
def _words() -> dict[str, Tree]:
    places = (f"tables/{file.stem}" for file in sorted((HERE / "tables").glob("*.yaml")))
    return {name: words for place in places if place != TEXTS for name, words in data(place).items()}


def declared(
    name: str,
    *,
    cells: tuple[Cell, ...],
    claims: tuple[Claim, ...] = (),
    more: More | None = None,
    own: tuple[str, ...] = (),
    own_page: OwnPage | None = None,
) -> Table:
    """The table of this name: its words are data, its cells and claims are given."""
    words = dict(_words()[name])
    protocol: str | Sequence[str] = words.pop("protocol")
    parts = [protocol] if isinstance(protocol, str) else [data(TEXTS).get(part, part) for part in protocol]
    return Table(
        name, protocol=" ".join(parts), cells=cells, claims=claims, more=more, own=own, own_page=own_page, **words
    )
