"""Serving the page: on a socket that is ours before anything is promised, and to this machine unless told otherwise."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError


def is_local(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; port 0 is any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise CoterieError(
            f"--host {host}: there is no such address; write 127.0.0.1 or one of this machine",
            code="address-unavailable",
        ) from None
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a port rests a minute after each use
    try:
        sock.bind(address)
        sock.listen(128)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            why = f"--port {port}: in use by another program; choose another, or 0 for any that is free"
        elif error.errno == errno.EACCES:
            why = f"--port {port}: not permitted; choose one from 1024 on"
        elif error.errno == errno.EADDRNOTAVAIL:
            why = f"--host {host}: no address of this machine; write 127.0.0.1, or 0.0.0.0 for all it has"
        else:
            why = f"{host}:{port}: cannot listen there ({error.strerror})"
        raise CoterieError(why, code="address-unavailable") from None
    return sock


def address_of(sock: socket.socket, host: str) -> str:
    """What to write in a browser."""
    port = sock.getsockname()[1]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}/"


def protect(app: Any, host: str) -> None:
    """Scripts of this page only, and no other site may reach a local page by a name that points here."""
    from flask import Response, abort, request

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

    app.server.before_request(check)
    app.server.after_request(add)


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
