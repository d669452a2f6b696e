"""`coterie report`: one HTML file about a run or several, and figures as files."""

from __future__ import annotations

import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.core.errors import CoterieError

if TYPE_CHECKING:
    from coterie.tools.report.record import RunRecord


def dashboard(
    directory: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="The address to listen at; only this machine unless told otherwise.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8050,
) -> None:
    """Watch and compare the runs of a directory in a browser, live.

    Example: coterie dashboard runs --port 8051
    """
    if not directory.is_dir():
        raise CoterieError(
            f"{directory}: {'a file' if directory.exists() else 'no such directory'}; "
            "write where your runs are: coterie dashboard DIR",
            code="run-not-found",
        )
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise CoterieError(
            f"coterie dashboard needs {error.name}: pip install 'coterie[dashboard]'", code="extra-missing"
        ) from None
    from coterie.serving.address import address_of, is_local, listen
    from coterie.tools.report import live

    sock = listen(host, port)
    if not is_local(host):
        sys.stderr.write(
            f"warning: --host {host} lets other machines read all that is in {directory}; there is no password\n"
        )
    sys.stderr.write(f"dashboard of {directory}: {address_of(sock, host)} (end it with Ctrl-C)\n")
    sys.stderr.flush()
    live.serve(directory, sock, host)
    sys.stderr.write("\n")


class Ending(StrEnum):
    """Kinds of picture files."""

    png = "png"
    svg = "svg"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN [RUN ...]", help="Run directories, or directories with runs somewhere below them."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The page; RUN/report.html for one run, report.html for several."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every figure there too; needs a Chrome or Chromium.")
    ] = None,
    cdn: Annotated[
        bool, typer.Option("--cdn", help="A small file that loads its plotting library from cdn.plot.ly when opened.")
    ] = False,
    format_: Annotated[
        list[Ending] | None, typer.Option("--format", help="Of those figures; PNG and SVG when not given.")
    ] = None,
) -> None:
    """Write one HTML page about a run, or about several: curves, clusters, models, cost, and a ranking over seeds.

    Example: coterie report runs/a, or coterie report runs/fedavg-* runs/wecfl-* --out compare.html --figures figures
    """
    from coterie.tools.report.page import render

    if format_ is not None and figures is None:
        raise CoterieError("--format is for figures: write --figures DIR as well", code="option-conflict")
    records = read_all(runs)
    page = out or (records[0].path / "report.html" if len(records) == 1 else Path("report.html"))
    write_page(page, render(records, lambda name: _say(f"drawing {name}"), "cdn" if cdn else "inside"))
    typer.echo(str(page))
    if figures is not None:
        from coterie.tools.report.export import files_of, write_figures

        endings = [ending.value for ending in dict.fromkeys(format_ or Ending)]
        write_figures(files_of(records, figures), endings, _say)
        typer.echo(str(figures))


def read_all(paths: list[Path]) -> list[RunRecord]:
    """Every run that is meant, once: a directory that is no run stands for those below it."""
    from coterie.tools.report.record import find_runs, read_run

    meant: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise CoterieError(f"{path}: there is no such run directory", code="run-not-found")
        if not path.is_dir():
            raise CoterieError(f"{path}: is a file; name the run's directory", code="run-not-found")
        found = find_runs(path)
        if not found and any(path.iterdir()):
            raise CoterieError(f"{path}: no run in it or below it (a run has a config.yaml)", code="run-not-found")
        for run in [path] if path in found or not found else found:
            meant.setdefault(run.resolve(), run)
    return [read_run(run) for run in meant.values()]


def write_page(file: Path, page: str) -> None:
    """Whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(page, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise CoterieError(
            f"{file}: cannot be written ({error.strerror}); choose another with --out", code="disk-write"
        ) from None


def _say(line: str) -> None:
    typer.echo(line, err=True)
