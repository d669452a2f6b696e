"""What there is, as a table. It imports nothing heavy: a list is to be there at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from coterie.core.registry import Entry


def listing(entries: Sequence[Entry]) -> Table:
    """A table of what there is."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column, style in (("name", "bold cyan"), ("what it is", ""), ("paper", "dim")):
        table.add_column(column, style=style, no_wrap=column == "name")
    for entry in entries:
        table.add_row(*map(escape, dataclasses.astuple(entry)))
    return table
