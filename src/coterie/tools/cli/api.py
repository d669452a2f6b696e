"""`coterie api`: predictions of trained runs over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.core.errors import CoterieError
from coterie.tools.cli.options import Trust


def api(
    runs: Annotated[list[str], typer.Argument(metavar="[NAME=]RUN...", help="Directories of runs, with names or not.")],
    host: Annotated[str, typer.Option(help="The address to listen at; beyond this machine a token is needed.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Has the bearer token; or set COTERIE_API_TOKEN.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="A certificate, to serve HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    body: Annotated[int, typer.Option(min=1, help="The largest body of a request, in bytes.")] = 10_000_000,
    rows: Annotated[int, typer.Option(min=1, help="The most samples of a request.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="The time to receive a request, and to answer it.")] = 30.0,
    reload: Annotated[
        float, typer.Option(min=0.0, help="Seconds between two looks for newer checkpoints; 0: on SIGHUP only.")
    ] = 5.0,
    trust: Trust = None,
) -> None:
    """Serve trained runs over HTTP: POST /predict and /assign, GET /clusters, /healthz, /metrics, /docs.

    Example: coterie api runs/a --port 8001
    """
    _require_serve()
    if (tls_cert is None) != (tls_key is None):
        raise CoterieError("--tls-cert and --tls-key go together; give both", code="option-conflict")
    from coterie.serving.address import address_of, is_local, listen
    from coterie.serving.api.limits import ApiLimits
    from coterie.serving.api.runs import Runs, named
    from coterie.serving.api.server import Security, serve
    from coterie.serving.api.token import read_token

    token = read_token(host, token_file)
    served = Runs(named(runs), ApiLimits(body=body, rows=rows, seconds=seconds), tuple(trust or ()))
    sock = listen(host, port)
    address = address_of(sock, host)
    if tls_cert is not None:
        address = address.replace("http://", "https://")
    elif not is_local(host):
        sys.stderr.write("warning: without --tls-cert the token and the data are sent in the clear\n")
    sys.stderr.write(f"serving {', '.join(served.by_name)}: {address}docs (end it with Ctrl-C)\n")
    sys.stderr.flush()
    try:
        serve(served, sock, host, Security(token, tls_cert, tls_key), reload)
    except KeyboardInterrupt:
        sys.stderr.write("\n")


def _require_serve() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise CoterieError("coterie api needs fastapi: pip install 'coterie[serve]'", code="extra-missing") from None
