"""Serving the page: on a socket that is ours before anything is promised, and to this machine unless told otherwise."""

from __future__ import annotations

import logging
import socket
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

from coterie.serving.address import address_of as address_of
from coterie.serving.address import is_local as is_local
from coterie.serving.address import listen as listen

UPDATES = "/_dash-update-component"  # where the page asks for what has changed


def protect(app: Any, host: str) -> None:
    """Scripts of this page only, and no other site may reach a local page by a name that points here."""
    from flask import Response, abort, request
    from werkzeug.exceptions import HTTPException

    scripts = " ".join(f"'{found}'" if found[0] != "'" else found for found in app.csp_hashes())
    policy = (
        f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    def check() -> None:
        name = request.host.rsplit(":", 1)[0] if not request.host.endswith("]") else request.host
        if is_local(host) and not is_local(name):
            abort(403)

    def add(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    def refuse(error: Exception) -> Any:
        """A request that no page of ours sends is the sender's mistake, not one of the server."""
        if isinstance(error, HTTPException):
            return error
        if request.path.endswith(UPDATES) and not _ours(error):
            return Response("This is not a request of the dashboard's page.\n", 400, mimetype="text/plain")
        raise error

    app.server.register_error_handler(Exception, refuse)
    app.server.before_request(check)
    app.server.after_request(add)


def _ours(error: BaseException) -> bool:
    """Whether an error came from code of this package, and not from Dash taking a request apart."""
    frames, here = traceback.walk_tb(error.__traceback__), str(Path(__file__).parent)
    return any(frame.f_code.co_filename.startswith(here) and frame.f_code.co_name != "refuse" for frame, _ in frames)


def _load() -> None:
    """What figures need, before there are threads: plotly trips over a pandas that another thread has half imported."""
    from importlib import import_module

    for name in ("safetensors.numpy", "scipy.stats", "sklearn.manifold", "plotly.graph_objects", "plotly.subplots"):
        import_module(name)


def serve(directory: Path, sock: socket.socket, host: str) -> None:
    """Answer until interrupted."""
    from werkzeug.serving import make_server

    from coterie.tools.dashboard.app import make_app

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # or every look would be a line
    _load()
    app = make_app(directory)
    protect(app, host)
    with closing(sock):
        server: Any = make_server(host, sock.getsockname()[1], app.server, threaded=True, fd=sock.fileno())
        server.daemon_threads = True  # a figure in the making does not hold up the end
        try:
            server.serve_forever(poll_interval=0.2)
        finally:
            server.server_close()
