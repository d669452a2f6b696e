"""`coterie dashboard`: a live page over the runs of a directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.core.errors import CoterieError


def dashboard(
    directory: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="The address to listen at; only this machine unless told otherwise.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8050,
) -> None:
    """Watch, search and compare the runs of a directory in a browser, live.

    Example: coterie dashboard runs --port 8051
    """
    if not directory.is_dir():
        raise CoterieError(
            f"{directory}: {'a file' if directory.exists() else 'no such directory'}; "
            "write where your runs are: coterie dashboard DIR",
            code="run-not-found",
        )
    try:
        import dash  # noqa: F401
        import plotly  # noqa: F401
    except ImportError:
        raise CoterieError(
            "coterie dashboard needs dash: pip install 'coterie[dashboard]'", code="extra-missing"
        ) from None
    from coterie.tools.dashboard import server

    sock = server.listen(host, port)
    if not server.is_local(host):
        sys.stderr.write(
            f"warning: --host {host} lets other machines read all that is in {directory}; there is no password\n"
        )
    sys.stderr.write(f"dashboard of {directory}: {server.address_of(sock, host)} (end it with Ctrl-C)\n")
    sys.stderr.flush()
    try:
        server.serve(directory, sock, host)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
