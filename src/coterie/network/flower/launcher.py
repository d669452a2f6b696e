"""`python -m coterie.network.flower.launcher flower-superlink ...`: a Flower program that ends when its parent does.

A SuperNode checks for messages as often as configured; a SuperLink gets a guard in front of it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from coterie.core.processes import GRACE, end_with_parent
from coterie.network.audit import AuditLog, Throttled, no_audit
from coterie.network.connections import STRANGERS, Connections, Listener, bound, most_open, prompt
from coterie.network.flower import internals
from coterie.network.flower.guard import close_to_strangers, this_machine

NODE, HEARTBEAT = "flwr.supernode.start_client_internal", "flwr.supercore.heartbeat"  # modules of Flower
BEAT = 12  # seconds, of which the SuperLink waits for two: a SuperNode sends a sign of life every five or six
AGAIN = 4  # seconds between two tries to reach the SuperLink
SIGNS = "COTERIE_SIGNS"  # in the environment: the pipe by which a SuperNode shows that it is alive
LOOK = "COTERIE_LOOK"  # in the environment: seconds between two looks for a message
AUDIT = "COTERIE_AUDIT"  # in the environment: the file that a SuperLink's guard writes refusals to
CONNECTIONS = "COTERIE_CONNECTIONS"  # in the environment: how many an address may have at once
REQUESTS = "COTERIE_REQUESTS"  # in the environment: how many a client may send in a second


def poll_more_often(seconds: float) -> None:
    """An idle SuperNode would check for messages only every three seconds."""
    clock = SimpleNamespace(**vars(time) | {"sleep": lambda pause: time.sleep(min(pause, seconds))})
    internals.replace(NODE, "time", clock)


class SignsOfLife(logging.Handler):
    """Writes a byte to a pipe for every request of the SuperNode's main loop that was answered: httpx logs each."""

    def __init__(self, pipe: int) -> None:
        super().__init__(logging.INFO)
        self._pipe = pipe
        os.set_blocking(pipe, False)

    def emit(self, record: logging.LogRecord) -> None:
        """Requests of other threads go on when the main loop has ended."""
        if record.threadName == threading.main_thread().name:
            with suppress(OSError):  # nobody reads; the client will end this process
                os.write(self._pipe, b".")


def show_signs_of_life(pipe: int) -> None:
    """Let the client know that this SuperNode asks the server for messages."""
    requests = logging.getLogger("httpx")
    requests.setLevel(logging.INFO)
    requests.propagate = False  # a line per request is not for Flower's log
    requests.addHandler(SignsOfLife(pipe))


def run_to_the_end(program: Callable[[], object]) -> NoReturn:
    """Run a program, and end this process when its main thread is over: a SuperNode whose connection was cut in the
    middle of a TLS handshake returns, but threads of its own keep its process for ever."""
    code: object = 1
    try:
        code = program()
    except SystemExit as error:
        code = error.code
        raise
    finally:
        status = code if isinstance(code, int) else int(code is not None)
        timer = threading.Timer(GRACE, os._exit, (status,))
        timer.daemon = True
        timer.start()
    sys.exit(status)


def detect_loss_sooner() -> None:
    """Flower would take a killed SuperNode for alive for a minute, in which no other can have its name; and a SuperNode
    that lost its SuperLink would try again only every twenty seconds."""
    for module in (HEARTBEAT, "flwr.supernode.fleet_http_connection"):
        internals.replace(module, "HEARTBEAT_DEFAULT_INTERVAL", BEAT)
    internals.replace("flwr.supercore.retry.http_retry", "MAX_RETRY_DELAY", AGAIN)
    waits = internals.find(HEARTBEAT, "exponential")
    internals.replace(HEARTBEAT, "exponential", lambda **how: waits(**how | {"max_delay": AGAIN}))


def close_silent_connections(connections: Connections | None = None) -> None:
    """Have the web server of this process close a connection that asks for nothing."""
    from uvicorn.config import Config

    load = Config.load

    def loaded(config: Any) -> None:
        load(config)
        config.http_protocol_class = prompt(config.http_protocol_class, connections)

    Config.load = loaded


def limit_connections(connections: Connections) -> None:
    """Have the web server of this process count its connections.

    Its event loop must be asyncio's own: uvloop accepts connections by itself. And who asks is whoever is connected,
    never who a header names: with FORWARDED_ALLOW_IPS in the environment, a stranger could pose as this machine.
    """
    from uvicorn import Server

    run = Server.run

    def limited(server: Any, sockets: Any = None) -> None:
        config = server.config
        config.loop, config.proxy_headers = "asyncio", False
        with Listener(bound(config.host, config.port), connections) as listener:
            run(server, sockets or [listener])

    Server.run = limited


def guard_superlink(host: str, keys: bool) -> None:
    """Limit who reaches the SuperLink that this process is about to become, how often, and by how many connections.

    keys: whether clients have them."""
    note = Throttled(AuditLog(Path(os.environ[AUDIT])).note).note if AUDIT in os.environ else no_audit
    per_address, requests = int(os.environ.get(CONNECTIONS, "128")), float(os.environ.get(REQUESTS, "100"))
    most = most_open()
    strangers = min(STRANGERS, most // 2) if keys else None
    connections = Connections(per_address, most, this_machine(host), note, strangers)
    close_silent_connections(connections)
    limit_connections(connections)
    close_to_strangers(host, requests, note, connections)


def main() -> None:
    """Run the program named first, with the arguments after it."""
    end_with_parent(GRACE)
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "flower-superlink":
        guard_superlink(sys.argv[sys.argv.index("--host") + 1], keys="--enable-supernode-auth" in sys.argv)
    else:
        close_silent_connections()
        detect_loss_sooner()
        if SIGNS in os.environ:
            show_signs_of_life(int(os.environ[SIGNS]))
        poll_more_often(float(os.environ.get(LOOK, "3")))
    (program,) = entry_points(group="console_scripts", name=sys.argv[0])
    run_to_the_end(program.load())


if __name__ == "__main__":
    main()
