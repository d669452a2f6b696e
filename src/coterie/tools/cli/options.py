"""Options that several commands have, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.core.errors import CoterieError
from coterie.core.files import check_run_files

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[FILE.yaml] [key=value ...]", help="A file, then changes to it.")
]
Out = Annotated[Path | None, typer.Option(help="The run's directory; runs/METHOD-1, -2, ... when not given.")]
Resume = Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run in this directory.")]
Trust = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE:NAME", help="Code that the file or directory names, and you know; repeatable."),
]
Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="That computes clients: auto, cpu, cuda, cuda:1, mps or xpu.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else there.")]


def check_resume(resume: Path | None, file: Path | None, out: Path | None) -> None:
    """A run that goes on has its configuration and its directory."""
    if resume is None:
        return
    if file is not None or out is not None:
        raise CoterieError(
            "--resume takes its configuration and directory from the run; leave the file and --out out",
            code="option-conflict",
        )
    check_run_files(resume)
    if not (resume / "config.yaml").is_file():
        raise CoterieError(f"{resume}: no run to resume there (it has no config.yaml)", code="run-not-found")
