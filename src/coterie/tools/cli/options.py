"""Options that several commands have, said once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.errors import CoterieError
from coterie.core.files import check_run_files

if TYPE_CHECKING:
    from coterie.training.config import RunConfig


More = Annotated[int | None, typer.Option(metavar="ROUNDS", help="With --resume: so many rounds more.")]
With = Annotated[
    Path | None,
    typer.Option("--with", metavar="NEW", help="With --resume: clients to add; a file as the run's own data, or YAML."),
]
BackTo = Annotated[
    int | None,
    typer.Option(metavar="ROUND", help="With --resume: go back to this round; later ones are kept in abandoned-N."),
]


def prepared(
    resume: Path | None,
    config: RunConfig,
    more: int | None,
    new: Path | None,
    back_to: int | None,
    changes: Sequence[str],
    console: Any,
) -> RunConfig:
    """The configuration of a run that goes on; its directory is changed where clients are added or it goes back."""
    if (more, new, back_to) == (None, None, None):
        return config
    if resume is None:
        raise CoterieError(
            "--more, --with and --back-to change a run that is there: name it with --resume DIR", code="option-conflict"
        )
    if any(word.startswith("rounds=") for word in changes) and (more is not None or back_to is not None):
        raise CoterieError(
            "--more and --back-to say how many rounds the run has; leave rounds= out", code="option-conflict"
        )
    from coterie.training.going_on import Change
    from coterie.training.going_on import prepared as changed

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False, emoji=False)

    return changed(resume, config, Change(more, new, back_to), say)


def stopping() -> None:
    """Said from a signal handler, which may have come while a stream was being written to: so past the streams."""
    with suppress(OSError):
        os.write(2, b"\nstopping after this round; once more to stop at once\n")


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
