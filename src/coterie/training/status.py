"""The status of a run: status.json in its directory, and the lock that the run's process holds.

status.json says "running" from the first moment, and at the end done, stopped or failed and why. A process that was
killed writes nothing any more; but the lock is the operating system's and goes with the process, so that a "running"
without a lock is a run that died.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from coterie.core.decoder import DecodeError, parse_json
from coterie.core.errors import CoterieError, StoppedError
from coterie.core.files import plain_bytes, write_durably

State = Literal["running", "done", "stopped", "failed"]
FILE = "status.json"
LOCK = ".lock"  # held while a process works on the run
LONGEST = 2000  # characters of a reason


@dataclass(frozen=True)
class RunState:
    """What status.json says, and what the lock says about it."""

    state: State
    reason: str | None = None  # why it was stopped or failed
    alive: bool | None = None  # of a running one: its process is there; None where this machine cannot tell


def write(path: Path, state: State, reason: str | None = None) -> None:
    """Replace the directory's status.json."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    about = {"state": state, "when": when, "host": socket.gethostname(), "process": os.getpid()}
    if reason:
        about["reason"] = reason[:LONGEST]
    write_durably(path / FILE, json.dumps(about, indent=1) + "\n")


def write_end(path: Path, error: BaseException) -> None:
    """A run is being left by an error. If nothing can be written (a full disk), only the lock shows it."""
    with contextlib.suppress(OSError):
        write(path, *why(error))


def why(error: BaseException) -> tuple[State, str]:
    """The status of a run that ended with this error, and the reason."""
    said = str(error)
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted"
    if isinstance(error, StoppedError):
        return "stopped", said
    if isinstance(error, CoterieError) and said:
        return "failed", said
    kind = type(error).__name__
    return "failed", f"{kind}: {said}" if said else kind


def read(path: Path) -> RunState | None:
    """The status of a run; None if it is not recorded (an older version) or damaged."""
    found = _read(path)
    if found is None or found["state"] != "running":
        return None if found is None else RunState(found["state"], _text(found.get("reason")))
    if found.get("host") != socket.gethostname():
        return RunState("running")
    alive = held(path)
    if alive is False:
        again = _read(path)  # it may have ended between the two checks
        if again is not None and again["state"] != "running":
            return RunState(again["state"], _text(again.get("reason")))
        return RunState("failed", _died(found.get("process")))
    return RunState("running", alive=alive)


def left_running(path: Path) -> bool:
    """Whether status.json says "running" although no process works on the run."""
    found = _read(path)
    return found is not None and found["state"] == "running" and held(path) is False


def held(path: Path) -> bool | None:
    """Whether a process works on the run; None if it is unknown (Windows, no permission to read)."""
    try:
        import fcntl

        file = os.open(path / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: several readers do not take one another for a run
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)
    return False


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = parse_json(plain_bytes(path / FILE))
    except (OSError, DecodeError):
        return None
    return found if isinstance(found, dict) and found.get("state") in get_args(State) else None


def _text(value: object) -> str | None:
    return value[:LONGEST] if isinstance(value, str) and value else None


def _died(process: object) -> str:
    number = f" ({process})" if isinstance(process, int) else ""
    return (
        f"its process{number} ended without a message: it was killed, ran out of memory, or the machine went down; "
        "the run can be resumed from its last checkpoint"
    )
