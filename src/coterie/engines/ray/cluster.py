"""Connect to a Ray cluster, or start one on this machine, with errors that say why it failed."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
import time

from coterie.core.errors import CoterieError

TRIES, PAUSE = 3, 5.0  # attempts to reach the head, and seconds between two of them
LOCAL = ("auto", None)  # the address in RAY_ADDRESS or, without one, a cluster on this machine alone


def join(address: str | None, cpus: int) -> bool:
    """Connect this process. Returns whether it was connected here, and so has to be disconnected afterwards."""
    if importlib.util.find_spec("ray") is None:
        raise CoterieError("engine.name=ray needs Ray: pip install 'coterie[ray]'", code="extra-missing")
    where = os.environ.get("RAY_ADDRESS", "local") if address in LOCAL else str(address)
    if "://" in where:
        raise CoterieError(
            f"engine.address: '{where}' is for use from outside; write the head's address, as in 10.0.0.1:6379, "
            "and run on a machine of the cluster",
            code="engine-unreachable",
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Devices stay visible to workers; Ray warns unless this is set.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if where == "local" and "ray" not in sys.modules:
        # Ray's name for "no other machines": everything listens on 127.0.0.1 only.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # by default Ray's workers yield to everything else
    import ray

    if ray.is_initialized():
        return False
    if where != "local" and not _reachable(where):
        raise CoterieError(
            f"engine.address: no answer from {where}; is `ray start --head` running there?",
            code="engine-unreachable",
        )
    alone = {"num_cpus": cpus, "include_dashboard": False} if where == "local" else {}
    try:
        ray.init(where, namespace="coterie", log_to_driver=False, logging_level=logging.CRITICAL, **alone)
    except Exception as error:  # Ray raises many kinds of errors if there is no cluster or the token is wrong
        raise CoterieError(_unreachable(where, error), code="engine-unreachable") from None
    return True


def _reachable(where: str) -> bool:
    """Whether the port accepts connections: Ray would try for many minutes. An invalid address is left to Ray."""
    host, colon, port = where.rpartition(":")
    return head_answers(where) if colon and host and port.isdigit() else True


def head_answers(head: str) -> bool:
    """Whether the cluster's head still answers. Ray would wait a minute and then end the process."""
    host, _, port = head.rpartition(":")
    for attempt in range(TRIES):
        time.sleep(PAUSE if attempt else 0)
        try:
            socket.create_connection((host, int(port)), timeout=PAUSE).close()
        except OSError:
            continue
        return True
    return False


def _unreachable(where: str, error: Exception) -> str:
    what = "no local Ray cluster could be started" if where == "local" else f"no Ray cluster at {where} lets us connect"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
    hint = "" if where == "local" else " Is `ray start` running here too, with the same versions and the same token?"
    return f"engine.address: {what} ({why}).{hint}"
