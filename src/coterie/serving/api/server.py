"""Serving the application until interrupted."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn

from coterie.network.connections import Connections, Listener, most_open, prompt
from coterie.serving.address import is_local
from coterie.serving.api.app import make_app
from coterie.serving.api.runs import Runs

CONNECTIONS = 1000  # at a time, as far as the system allows so many open files; an idle one gives way to a new one


@dataclass(frozen=True)
class Security:
    """Who may ask, and whether what is said is encrypted."""

    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None


def serve(runs: Runs, sock: socket.socket, host: str, security: Security, watch: float) -> None:
    """Answer until interrupted; requests that have begun are answered first."""
    torch.set_num_threads(1)
    most = most_open(CONNECTIONS)
    connections = Connections(most, most)
    config = uvicorn.Config(
        make_app(runs, token=security.token, local=is_local(host) and security.token is None, watch=watch),
        loop="asyncio",  # uvloop would accept connections by itself, and not count them
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=max(1, int(runs.limits.seconds)),
        ssl_certfile=security.certificate,
        ssl_keyfile=security.key,
    )
    config.load()
    config.http_protocol_class = prompt(config.http_protocol_class, connections)
    with Listener(sock, connections) as listener:
        uvicorn.Server(config).run(sockets=[listener])
