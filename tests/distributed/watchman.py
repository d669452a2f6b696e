"""Ends everything that a test has started, when the test is gone: `watchman.py VARIABLE=VALUE [NAMESPACE ...]` waits
until its standard input is closed, and then ends every process whose environment says so (SIGTERM first, after a while
SIGKILL) and removes the network namespaces. It is in a session of its own: what ends the tests does not end it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

GRACE = 5.0  # seconds to end by itself


def marked(mark: str) -> list[int]:
    """Processes whose environment has a variable that begins so, wherever they have gone; not this one."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                variables = (place / "environ").read_bytes().split(b"\0")
                state = (place / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue  # it has ended, or is somebody else's
            if state not in "ZX" and any(v.startswith(mark.encode()) for v in variables):
                found.append(int(place.name))
    return found


def end_all(mark: str, grace: float = GRACE) -> list[int]:
    """End them; returns what is left, which should be nobody."""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 30.0)):
        for pid in marked(mark):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        until = time.monotonic() + seconds
        while marked(mark) and time.monotonic() < until:
            time.sleep(0.1)
    return marked(mark)


def post(mark: str, namespaces: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """A watchman; close its standard input to send him off."""
    return subprocess.Popen(
        [sys.executable, __file__, mark, *namespaces], stdin=subprocess.PIPE, start_new_session=True
    )


def send_off(watchman: subprocess.Popen[bytes]) -> None:
    """When everything is over."""
    assert watchman.stdin is not None
    watchman.stdin.close()
    watchman.wait()


if __name__ == "__main__":
    while os.read(0, 1):
        pass
    end_all(sys.argv[1])
    for namespace in sys.argv[2:]:
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
