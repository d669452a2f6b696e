"""Where a service listens: a socket that is ours before anything is promised, and who can reach it."""

from __future__ import annotations

import errno
import ipaddress
import socket

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
