"""Serving the application until interrupted."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn

from coterie.serving.address import is_local
from coterie.serving.api.app import make_app
from coterie.serving.api.runs import Runs


@dataclass(frozen=True)
class Security:
    """Who may ask, and whether what is said is encrypted."""

    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None


def serve(runs: Runs, sock: socket.socket, host: str, security: Security, watch: float) -> None:
    """Answer until interrupted; requests that have begun are answered first."""
    torch.set_num_threads(1)
    app = make_app(runs, token=security.token, local=is_local(host) and security.token is None, watch=watch)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=max(1, int(runs.limits.seconds)),
        ssl_certfile=security.certificate,
        ssl_keyfile=security.key,
    )
    uvicorn.Server(config).run(sockets=[sock])
