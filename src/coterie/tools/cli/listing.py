"""`coterie list`: what there is by name, and what one of them is. A list is to be there at once: nothing heavy."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.core import registry
from coterie.core.registry import NO_CODE, Catalogue, Entry
from coterie.tools.cli.options import AsJson

FIRST = ("halves", "fedavg", "local", "ditto", "ifca", "wecfl", "fesem-cam", "cfl", "stocfl", "fedgroup")  # methods


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    models = "models"
    partitions = "partitions"
    data = "data"


CATALOGUES = {
    Kind.methods: registry.METHODS,
    Kind.models: registry.MODELS,
    Kind.partitions: registry.PARTITIONS,
    Kind.data: registry.DATASETS,
}


def list_(
    kind: Annotated[Kind, typer.Argument(help="methods, models, partitions (ways to spread a data set) or data.")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Describe this, with its parameters.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every method, not the ten to begin with.")] = False,
    as_json: AsJson = False,
) -> None:
    """List methods, models, partitions or data sets; or describe one of them.

    Example: coterie list methods, or coterie list methods fesem-cam
    """
    catalogue = CATALOGUES[kind]
    if name is not None:
        _describe(kind, name, as_json)
        return
    entries = list(catalogue.entries())
    few = kind is Kind.methods and not every and not as_json
    shown = [entry for entry in entries if entry.name in FIRST] if few else entries
    shown = sorted(shown, key=lambda entry: FIRST.index(entry.name)) if few else shown
    states = _states(shown) if kind is Kind.data else None
    if as_json:
        more = [{}] * len(shown) if states is None else [{"state": state} for state in states]
        _print([dataclasses.asdict(entry) | one for entry, one in zip(shown, more, strict=True)])
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    last = "here?" if states is not None else "paper"
    for column, style in (("name", "bold cyan"), ("what it is", ""), (last, "dim")):
        table.add_column(column, style=style, no_wrap=column == "name")
    for entry, end in zip(shown, states or [entry.paper for entry in shown], strict=True):
        table.add_row(*map(escape, (entry.name, entry.summary, end)))
    console = Console()
    console.print(table)
    if few:
        console.print(f"{len(entries) - len(shown)} more: coterie list methods --all", style="dim")


def _states(entries: Sequence[Entry]) -> list[str]:
    """Which data sets have been downloaded."""
    from coterie.tools.cli.data import state

    return [state(entry.name) for entry in entries]


def _describe(kind: Kind, name: str, as_json: bool) -> None:
    """Its documentation, its paper, and what can be set."""
    catalogue = CATALOGUES[kind]
    made = catalogue.find(name, NO_CODE)
    parameters = list(_parameters(catalogue, made))
    about, paper = (made.__doc__ or "").strip(), str(getattr(made, "paper", ""))
    if as_json:
        _print({"name": name, "summary": about.splitlines()[0], "paper": paper, "parameters": dict(parameters)})
        return
    lines = [f"{name}: {' '.join(about.split())}", *([paper] if paper else [])]
    page = {Kind.methods: f"docs/methods/{name}.md", Kind.data: f"docs/data/{name}.md"}.get(kind)
    lines += [f"More: {page}"] if page else []
    key = {Kind.methods: "method", Kind.models: "model", Kind.partitions: "data.partition", Kind.data: "data"}[kind]
    lines += ["", "Parameters:"] if parameters else []
    for parameter, default in parameters:
        lines.append(f"  {key}.{parameter}" + (" (must be given)" if default is None else f"={default}"))
    typer.echo("\n".join(lines))


def _parameters(catalogue: Catalogue, made: Any, above: str = "") -> list[tuple[str, str | None]]:
    """Each with its default as it would be written; those of a method within a method below its key."""
    found: list[tuple[str, str | None]] = []
    for field in dataclasses.fields(made) if dataclasses.is_dataclass(made) else ():
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            found.append((f"{above}{field.name}", None))
        elif dataclasses.is_dataclass(default) and not isinstance(default, type):
            name = type(default).__name__
            names = (known for known, place in catalogue.places.items() if place.endswith(f":{name}"))
            found.append((f"{above}{field.name}", next(names, name)))
            found += [(f"{above}{field.name}.{n}", v) for n, v in _values(default) if "(" not in str(v)]
        else:
            found.append((f"{above}{field.name}", json.dumps(default) if isinstance(default, bool) else str(default)))
    return found


def _values(thing: Any) -> list[tuple[str, str | None]]:
    return [(f.name, str(getattr(thing, f.name))) for f in dataclasses.fields(thing) if f.init]


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
