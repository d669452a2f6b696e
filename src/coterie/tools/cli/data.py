"""`coterie data`: what data there is, fetching it, and looking at a federation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError

if TYPE_CHECKING:
    from rich.console import Console

    from coterie.data.download import DatasetSpec, Progress

app = typer.Typer(help="Data sets: get one, info about one, show a federation of it.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")]
Name = Annotated[str, typer.Argument(help="A data set of `coterie list data`.")]
Changes = Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", help="Its parameters.")]


@app.command()
def info(name: Name, changes: Changes = None, as_json: AsJson = False) -> None:
    """Shape, classes, size, licence, where it comes from and where it is, and its parameters."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from coterie.core.registry import ANY_CODE, DATASETS

    found = DATASETS.find(name, ANY_CODE)
    facts = {"name": name, "what it is": (found.__doc__ or "").strip().splitlines()[0]}
    if getattr(found, "paper", ""):
        facts["paper"] = found.paper
    spec = spec_of(name, changes or [])
    if spec is not None:
        facts |= _facts(spec)
    facts["here?"] = state(name, spec)
    facts["parameters"] = ", ".join(_parameters(found)) or "none"
    if as_json:
        _print_json(facts)
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for key, value in facts.items():
        table.add_row(f"[bold]{key}", escape(str(value)))
    Console().print(table)


@app.command()
def get(name: Name, changes: Changes = None, as_json: AsJson = False) -> None:
    """Fetch a data set into the cache ($COTERIE_DATA, or the user's cache directory), once and checked.

    Example: coterie data get emnist split=byclass
    """
    from rich.console import Console

    spec = spec_of(name, changes or [])
    if spec is None:
        raise CoterieError(f"{name}: there is nothing to fetch, it is {state(name)}", code="option-invalid")
    from coterie.data.download import get as fetch

    with progress(Console(stderr=True, quiet=as_json)) as tell:
        place = fetch(spec, tell)
    if as_json:
        _print_json({"name": spec.name, "path": str(place)})
    else:
        sys.stdout.write(f"{spec.name}: {place}\n")


@app.command()
def show(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE.yaml] [key=value ...]", help="As for `coterie run`."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The directory the pictures go to.")] = Path("pictures"),
    as_json: AsJson = False,
) -> None:
    """Draw the federation of a configuration: labels per client, cluster by cluster, and a contact sheet.

    Example: coterie data show data.partition.name=dirichlet data.partition.alpha=0.3
    """
    from rich.console import Console

    from coterie.data.download import fetch_for
    from coterie.data.plots import draw
    from coterie.training.build import build_data
    from coterie.training.config import read, split_words

    config = read(*split_words(words or []))
    fetch_for(config.data, partial(progress, Console(stderr=True, quiet=as_json)))
    federation = build_data(config)
    written = draw(federation, out)
    if as_json:
        _print_json({"federation": federation.describe(), "pictures": [str(path) for path in written]})
        return
    Console().print(federation.describe(), highlight=False, soft_wrap=True, markup=False, emoji=False)
    for path in written:
        sys.stdout.write(f"{path}\n")


# ------------------------------------------------------------------------------------------------- for the commands


def spec_of(name: str, changes: list[str]) -> DatasetSpec | None:
    """What a data set with these parameters consists of; None for what is embedded, generated or the user's own."""
    from coterie.core.registry import ANY_CODE, DATASETS
    from coterie.data.download import needed_files
    from coterie.training.config import parameters

    found = DATASETS.find(name, ANY_CODE)
    if not hasattr(found, "spec"):
        if changes:
            DATASETS.build(name, parameters(changes, "data"), ANY_CODE)  # a parameter that is none is told
        return None
    return needed_files(DATASETS.build(name, parameters(changes, "data"), ANY_CODE))


def state(name: str, spec: DatasetSpec | None = None) -> str:
    """Whether a data set is here."""
    from coterie.core.registry import ANY_CODE, DATASETS
    from coterie.data.download import where
    from coterie.data.sets.facts import OTHERS, PUBLIC

    if name in OTHERS:
        return OTHERS[name]
    spec = spec or PUBLIC.get(name) or getattr(DATASETS.find(name, ANY_CODE), "spec", None)
    if spec is None:  # the user's own
        from coterie.data.federate import makes_clients

        found = DATASETS.find(name, ANY_CODE)

        own = any(parameter.startswith("path:") for parameter in _parameters(found))
        return "generated" if makes_clients(found) else "your own file" if own else "embedded"
    here = where(spec)
    if here is not None:
        return "yes"
    return f"to fetch, {spec.bytes / 1e6:,.0f} MB" if spec.sources else "by hand"


def _facts(spec: DatasetSpec) -> dict[str, str]:
    from coterie.data.download import where

    return {
        "title": spec.title,
        "shape": spec.shape,
        "classes": str(spec.classes),
        "samples": f"{spec.samples:,}",
        "download": f"{spec.bytes / 1e6:,.0f} MB",
        "licence": spec.licence,
        "homepage": spec.homepage,
        "sources": "; ".join(source.title for source in spec.sources) or spec.instructions,
        "place": str(where(spec) or f"{spec.directory} (not there yet)"),
    }


def _parameters(found: Any) -> Iterator[str]:
    import dataclasses

    for field in dataclasses.fields(found) if dataclasses.is_dataclass(found) else ():
        given = "" if field.default is dataclasses.MISSING else f" = {field.default}"
        yield f"{field.name}: {field.type}{given}"


@contextmanager
def progress(console: Console) -> Iterator[Progress]:
    """A bar per thing that is fetched, when there is a terminal to draw on."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        *(TextColumn("{task.description}"), BarColumn(bar_width=24)),
        *(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
