"""`coterie data`: what data there is, fetching it, and looking at a federation."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.errors import CoterieError

if TYPE_CHECKING:
    from rich.console import Console

    from coterie.config import RunConfig
    from coterie.data.about import About
    from coterie.data.sources import Progress

app = typer.Typer(help="Data sets: list, fetch, describe, draw.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")]
Name = Annotated[str, typer.Argument(help="A data set of `coterie data list`.")]
Changes = Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", help="Its parameters.")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """What there is, and what is already here."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from coterie.catalogue import DATASETS

    rows = [(entry, state(entry.name)) for entry in DATASETS.entries()]
    if as_json:
        _print_json([{"name": e.name, "summary": e.summary, "paper": e.paper, "state": s} for e, s in rows])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", style="bold cyan", no_wrap=True)
    table.add_column("what it is")
    table.add_column("here?", no_wrap=True)
    for entry, here in rows:
        table.add_row(entry.name, escape(entry.summary), here)
    Console().print(table)


@app.command()
def info(name: Name, changes: Changes = None, as_json: AsJson = False) -> None:
    """Shape, classes, size, licence, where it comes from and where it is, and its parameters."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from coterie.catalogue import DATASETS

    found = DATASETS.find(name)
    facts = {"name": name, "what it is": (found.__doc__ or "").strip().splitlines()[0]}
    if getattr(found, "paper", ""):
        facts["paper"] = found.paper
    about = about_of(name, changes or [])
    if about is not None:
        facts |= _facts(about)
    facts["here?"] = state(name, about)
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

    about = about_of(name, changes or [])
    if about is None:
        raise CoterieError(f"{name}: there is nothing to fetch, it is {state(name)}")
    from coterie.data.fetch import get as fetch

    with progress(Console(stderr=True, quiet=as_json)) as tell:
        place = fetch(about, tell)
    if as_json:
        _print_json({"name": about.name, "path": str(place)})
    else:
        sys.stdout.write(f"{about.name}: {place}\n")


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

    from coterie.config import build_data, read, split_words
    from coterie.data.show import draw

    config = read(*split_words(words or []))
    fetch_for(config, Console(stderr=True, quiet=as_json))
    federation = build_data(config)
    written = draw(federation, out)
    if as_json:
        _print_json({"federation": federation.describe(), "pictures": [str(path) for path in written]})
        return
    Console().print(federation.describe(), highlight=False, soft_wrap=True, markup=False, emoji=False)
    for path in written:
        sys.stdout.write(f"{path}\n")


# ------------------------------------------------------------------------------------------------- for the commands


def about_of(name: str, changes: list[str]) -> About | None:
    """What a data set with these parameters consists of; None for what is embedded, generated or the user's own."""
    from coterie.catalogue import DATASETS
    from coterie.config import parameters

    found = DATASETS.find(name)
    if not hasattr(found, "about"):
        if changes:
            DATASETS.build(name, parameters(changes, "data"))  # a parameter that is none is told
        return None
    return _wanted(DATASETS.build(name, parameters(changes, "data")))


def _wanted(made: Any) -> About | None:
    """The files of this very object: of the variant it names; none where it has a path of its own."""
    if getattr(made, "path", None) is not None:
        return None
    about: About | None = getattr(made, "wanted", None) or getattr(made, "about", None)
    return about


def fetch_for(config: RunConfig, console: Console) -> None:
    """Fetch what a configuration needs, with a progress bar, before it is built without one."""
    from coterie.catalogue import DATASETS
    from coterie.data.fetch import get as fetch

    needed = [(config.data.name, config.data.params)]
    other = config.data.partition.params.get("other") if config.data.partition else None
    if isinstance(other, str | dict):  # the second data set of a hybrid
        params = {"name": other} if isinstance(other, str) else dict(other)
        needed.append((str(params.pop("name", "")), params))
    for name, params in needed:
        if name in DATASETS.places and hasattr(DATASETS.find(name), "about"):
            about = _wanted(DATASETS.build(name, params))
            if about is not None:
                with progress(console) as tell:
                    fetch(about, tell)


def state(name: str, about: About | None = None) -> str:
    """Whether a data set is here."""
    from coterie.catalogue import DATASETS
    from coterie.data.fetch import where

    found = DATASETS.find(name)
    about = about or getattr(found, "about", None)
    if about is None:
        from coterie.data.federate import makes_clients

        own = any(parameter.startswith("path:") for parameter in _parameters(found))
        return "generated" if makes_clients(found) else "your own file" if own else "embedded"
    here = where(about)
    if here is not None:
        return "yes"
    return f"to fetch, {about.bytes / 1e6:,.0f} MB" if about.sources else "by hand"


def _facts(about: About) -> dict[str, str]:
    from coterie.data.fetch import where

    return {
        "title": about.title,
        "shape": about.shape,
        "classes": str(about.classes),
        "samples": f"{about.samples:,}",
        "download": f"{about.bytes / 1e6:,.0f} MB",
        "licence": about.licence,
        "homepage": about.homepage,
        "sources": "; ".join(source.title for source in about.sources) or about.instructions,
        "place": str(where(about) or f"{about.directory} (not there yet)"),
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
