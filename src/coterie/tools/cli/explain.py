"""`coterie explain`: why is this client of a run in its cluster?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.core.text import as_written
from coterie.tools.cli.options import AsJson, Trust

if TYPE_CHECKING:
    from coterie.insight.explain import Explanation


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's directory.")],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="A client's name, or its number.")],
    trust: Trust = None,
    as_json: AsJson = False,
) -> None:
    """Say why a client is in its cluster: margin, runner-up, nearest clients, what distinguishes the cluster.

    Example: coterie explain runs/a 3
    """
    import sys

    from coterie.network.server import load

    result = load(run, trust=tuple(trust or ()))
    found = result.explain(as_written(result.known.names, client))
    if as_json:
        import json

        sys.stdout.write(json.dumps(to_json(found), indent=2) + "\n")
        return
    for line in str(found).splitlines():
        typer.echo(line)


def to_json(found: Explanation) -> dict[str, Any]:
    """The document that `--json` promises; keys stay."""
    import dataclasses

    return dataclasses.asdict(found) | {"answer": str(found).splitlines()}
