"""`coterie forget`: take a client out of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from coterie.core.text import as_written
from coterie.tools.cli.options import AsJson, Trust


def forget(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="A client's name, or its number.")],
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Take a client out of a run: delete its rows everywhere, leave it out of rounds to come, say what stays.

    Example: coterie forget runs/a 3
    """
    import dataclasses
    import json
    import sys

    from coterie.serving.forget import STAYS
    from coterie.serving.forget import forget as take_out

    found = take_out(run, as_written(_names(run), client), trust=tuple(trust or ()))
    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(found) | {"stays": STAYS}, indent=2) + "\n")
        return
    typer.echo(str(found))


def _names(run: Path) -> Sequence[str] | None:
    """Of the clients of this run, where they have names."""
    from coterie.training import serving_file

    said = serving_file.read(run, None)
    return None if said is None else said.data.names
