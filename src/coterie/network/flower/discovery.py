"""Where the server is, and whether it speaks as this client does: a SuperNode would try for ever, without a word."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

from coterie.core.errors import CoterieError
from coterie.network.security.certificates import ClientFiles, client_files

LOOK = 5.0  # seconds in which a server must take a connection, and answer
AGAIN = 1.0  # seconds between two looks


@dataclass(frozen=True)
class ServerConnection:
    """The server, and how this client proves itself to it (None: without TLS and keys)."""

    server: str  # host:port
    files: ClientFiles | None
    look: float = 1.0  # seconds between two looks for a message


def find(to: ServerConnection, patience: float, say: Callable[[str], None]) -> None:
    """Wait until the server is there. A client that finds it speaking otherwise gives up after so many seconds."""
    told, since = "", time.monotonic()
    while True:
        try:
            why = _mismatch(to)
            if why is None:
                break
            if time.monotonic() - since >= patience:
                raise CoterieError(why, code="network-refused")
            line = f"{why}; trying again for {patience:g} s"
        except OSError as error:
            since = time.monotonic()
            line = f"nobody answers at {to.server} yet ({error.strerror or error}); trying on"
        if line != told:
            say(line)
            told = line
        time.sleep(AGAIN)
    say(f"connecting to {to.server}")


def _mismatch(to: ServerConnection) -> str | None:
    """Why this client and the server cannot understand each other, if so; an OSError where nobody is there."""
    if to.files is not None:
        client_files(to.files.ca.parent)  # the directory may be gone since it was first read
    host, _, port = to.server.rpartition(":")
    host = host.strip("[]")
    with socket.create_connection((host, int(port)), timeout=LOOK) as line:
        return _plaintext(line, to.server) if to.files is None else _tls(line, host, to)


def _plaintext(line: socket.socket, server: str) -> str | None:
    try:
        line.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        first = line.recv(5)
    except TimeoutError:
        return None  # busy; what becomes of it is seen later
    except ConnectionError:
        first = b""
    if first == b"HTTP/":
        return None
    return f"the server at {server} wants TLS and a key, this client has neither: give --key DIR instead of --insecure"


def _tls(line: socket.socket, host: str, to: ServerConnection) -> str | None:
    assert to.files is not None
    try:
        context = ssl.create_default_context(cafile=str(to.files.ca))
    except OSError as error:  # a missing or damaged file is not an absent server
        raise CoterieError(
            f"{to.files.ca}: cannot be read ({error.strerror or error}); ask for the whole directory again (NAME, "
            "NAME.pub and ca.crt)",
            code="certificate-invalid",
        ) from None
    try:
        with context.wrap_socket(line, server_hostname=host):
            return None
    except ssl.SSLCertVerificationError:
        return None  # the SuperNode says more about it
    except TimeoutError:
        return None
    except (ssl.SSLEOFError, ConnectionError) as error:
        # A proxy whose server is not there, or a server with too many connections: it may come back any time.
        raise OSError(errno.ECONNRESET, "it ends connections before TLS is agreed upon") from error
    except ssl.SSLError:
        return (
            f"the server at {to.server} does not speak TLS, so this client does not talk to it: was it started with "
            "--insecure, or is it something else?"
        )
