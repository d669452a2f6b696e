"""How a Ray cluster is joined, or one of this machine started, and what is said when it cannot be."""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
import time

from coterie.core.errors import CoterieError

TRIES, PAUSE = 3, 5.0  # how often a head is called that does not answer, and seconds between two times
LOCAL = ("auto", None)  # what RAY_ADDRESS names or, where it names nothing, a cluster of this machine alone


def join(address: str | None, cpus: int) -> bool:
    """Connect this process. Whether it was connected here, and is to be disconnected afterwards."""
    if importlib.util.find_spec("ray") is None:
        raise CoterieError("engine.name=ray needs Ray: pip install 'coterie[ray]'", code="extra-missing")
    where = os.environ.get("RAY_ADDRESS", "local") if address in LOCAL else str(address)
    if "://" in where:
        raise CoterieError(
            f"engine.address: '{where}' is a door for outsiders; write the cluster's head, as in 10.0.0.1:6379, "
            "and run on a machine of the cluster",
            code="engine-unreachable",
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Left to the machine, which may have accelerators; Ray warns where nothing is said.
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
            f"engine.address: nobody answers at {where}; is `ray start --head` running there?",
            code="engine-unreachable",
        )
    alone = {"num_cpus": cpus, "include_dashboard": False} if where == "local" else {}
    try:
        ray.init(where, namespace="coterie", log_to_driver=False, logging_level=logging.CRITICAL, **alone)
    except Exception as error:  # Ray has many ways to say that there is no cluster, or that its token is another
        raise CoterieError(_unreachable(where, error), code="engine-unreachable") from None
    return True


def _reachable(where: str) -> bool:
    """Whether anybody listens there. Ray itself would try for many minutes. What is no address is Ray's to judge."""
    host, colon, port = where.rpartition(":")
    return head_answers(where) if colon and host and port.isdigit() else True


def head_answers(head: str) -> bool:
    """Whether anybody is there at the cluster's head. Ray itself would wait a minute and then end the process."""
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
    what = "no local Ray cluster could be started" if where == "local" else f"no Ray cluster at {where} lets us in"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
    hint = "" if where == "local" else " Is `ray start` running here too, with the same versions and the same token?"
    return f"engine.address: {what} ({why}).{hint}"
