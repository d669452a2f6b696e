"""`python -m coterie.network.flower.launcher flower-superlink ...`: a Flower program that ends when its parent does.

A SuperNode checks for messages as often as configured; a SuperLink gets a guard in front of it.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coterie.core.processes import end_with_parent
from coterie.core.termination import GRACE
from coterie.network.flower import internals
from coterie.network.flower.connections import Connections, limit_connections, most_open
from coterie.network.flower.guard import close_silent_connections, close_to_strangers, this_machine
from coterie.network.security.audit import AuditLog, Throttled, no_audit

NODE, HEARTBEAT = "flwr.supernode.start_client_internal", "flwr.supercore.heartbeat"  # modules of Flower
BEAT = 12  # seconds, of which the SuperLink waits for two: a SuperNode sends a sign of life every five or six
AGAIN = 4  # seconds between two tries to reach the SuperLink
NOTIFY = "COTERIE_NOTIFY"  # in the environment: the pipe by which a SuperNode tells that a message has come
LOOK = "COTERIE_LOOK"  # in the environment: seconds between two looks for a message
AUDIT = "COTERIE_AUDIT"  # in the environment: the file that a SuperLink's guard writes refusals to
CONNECTIONS = "COTERIE_CONNECTIONS"  # in the environment: how many an address may have at once
REQUESTS = "COTERIE_REQUESTS"  # in the environment: how many a client may send in a second


def poll_more_often(seconds: float) -> None:
    """An idle SuperNode would check for messages only every three seconds."""
    clock = SimpleNamespace(**vars(time) | {"sleep": lambda pause: time.sleep(min(pause, seconds))})
    internals.replace(NODE, "time", clock)


def notify_on_message(pipe: int) -> None:
    """Write a byte to a pipe when a message has come."""
    pull = internals.find(NODE, "_pull_and_store_message")

    def pull_and_notify(**how: Any) -> Any:
        found = pull(**how)
        if found is not None:
            with suppress(OSError):  # nobody listens; the client will end this process, or look by itself
                os.write(pipe, b"!")
        return found

    internals.replace(NODE, "_pull_and_store_message", pull_and_notify)


def detect_loss_sooner() -> None:
    """Flower would take a killed SuperNode for alive for a minute, in which no other can have its name; and a SuperNode
    that lost its SuperLink would try again only every twenty seconds."""
    for module in (HEARTBEAT, "flwr.supernode.fleet_http_connection"):
        internals.replace(module, "HEARTBEAT_DEFAULT_INTERVAL", BEAT)
    internals.replace("flwr.supercore.retry.http_retry", "MAX_RETRY_DELAY", AGAIN)
    waits = internals.find(HEARTBEAT, "exponential")
    internals.replace(HEARTBEAT, "exponential", lambda **how: waits(**how | {"max_delay": AGAIN}))


def guard_superlink(host: str) -> None:
    """Limit who reaches the SuperLink that this process is about to become, how often, and by how many connections."""
    note = Throttled(AuditLog(Path(os.environ[AUDIT])).note).note if AUDIT in os.environ else no_audit
    per_address, requests = int(os.environ.get(CONNECTIONS, "128")), float(os.environ.get(REQUESTS, "100"))
    connections = Connections(per_address, most_open(), this_machine(host), note)
    close_silent_connections(connections)
    limit_connections(connections)
    close_to_strangers(host, requests, note)


def main() -> None:
    """Run the program named first, with the arguments after it."""
    end_with_parent(GRACE)
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "flower-superlink":
        guard_superlink(sys.argv[sys.argv.index("--host") + 1])
    else:
        close_silent_connections()
        detect_loss_sooner()
        if NOTIFY in os.environ:
            notify_on_message(int(os.environ[NOTIFY]))
        poll_more_often(float(os.environ.get(LOOK, "3")))
    (program,) = entry_points(group="console_scripts", name=sys.argv[0])
    sys.exit(program.load()())


if __name__ == "__main__":
    main()
