"""`coterie init`: a first configuration for a file of one's own."""

from __future__ import annotations

import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.text import counted

if TYPE_CHECKING:
    from coterie.tools.first_config import Guesses, SeenFile


def init(
    file: Annotated[str | None, typer.Argument(help="Your data, one row per sample: csv, parquet or npz.")] = None,
    client: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Says whose row it is; guessed if not given.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What is to be predicted; guessed if not given.")
    ] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="No input: an identifier, the target in another form.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="Beside you, named after the data.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing, take the guesses.")] = False,
) -> None:
    """Write a configuration for your own data: every line is explained, and it runs.

    Example: coterie init visits.csv, or coterie init visits.csv --client hospital --target outcome --out visits.yaml
    """
    from coterie.tools.first_config import document, guess, look

    asks = sys.stdin.isatty() and not yes
    if file is None and not asks:
        raise CoterieError("which file? For example: coterie init visits.csv", code="option-missing")
    path = str(Path(file or typer.prompt("your data (csv, parquet or npz)")).expanduser())
    page = out or Path(Path(path).stem + ".yaml")
    if page.exists():
        raise CoterieError(f"{page}: exists already; remove it, or write --out ANOTHER.yaml", code="file-exists")
    seen = look(path)
    if asks:
        client, target = _ask(seen, client, target)
    found = guess(seen, client, target, leave_out or ())
    for line in told(seen, found):
        typer.echo(line)
    text = document(seen, found, shlex.quote(str(page)))
    _try(text)
    page.write_text(text, encoding="utf-8")
    for line in (
        f"written: {page}",
        "next:",
        *(f"  coterie {word} {shlex.quote(str(page))}" for word in ("inspect", "run")),
    ):
        typer.echo(line)


def told(file: SeenFile, found: Guesses) -> list[str]:
    """What was guessed and why."""
    rows = counted(file.rows, "row") if file.whole else f"the first {file.rows:,} rows"
    time = found.time
    return [
        f"{file.path}: {rows}, {len(file.columns) + len(file.inputs)} columns",
        f"  client    {found.client.column}: {found.client.why}",
        f"  target    {found.target.column}: {found.target.why}",
        f"  task      {found.task}: {found.task_why}",
        f"  time      {f'{time.column}: {time.why}' if time else 'none: test rows are drawn at random'}",
        *(f"  text      {name}: text of several words, which are hashed" for name in found.text),
        *(f"  rows      {one.column}: {one.why}" for one in found.incomplete),
        *(f"  left out  {one.column}: {one.why}" for one in (*found.left_out, *found.unused)),
        f"  inputs    {', '.join(found.inputs)}",
        *(f"  look at   {one.column}: {one.why}" for one in found.doubts),
    ]


def _ask(file: SeenFile, client: str | None, target: str | None) -> tuple[str, str]:
    """A person confirms the guesses, or names other columns."""
    from coterie.tools.first_config import owner_of, target_of

    typer.echo(f"columns: {', '.join(column.name for column in file.columns)}")
    if client is None:
        try:
            first = owner_of(file, target).column
        except CoterieError:
            first = None
        client = str(typer.prompt("whose row it is", default=first))
    if target is None:
        target = str(typer.prompt("what is predicted", default=target_of(file, client, ()).column))
    return client, target


def _try(text: str) -> None:
    """Read the data as the document says: what could not run is not written."""
    import yaml

    from coterie.training.build import build
    from coterie.training.config import RunConfig, named_values, read

    with warnings.catch_warnings():  # `coterie inspect` and `coterie run` say them
        warnings.simplefilter("ignore", CoterieWarning)
        build(read(None, base=RunConfig().dump() | named_values(yaml.safe_load(text))))
