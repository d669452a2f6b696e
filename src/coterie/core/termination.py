"""How a command ends that has started others: SIGTERM ends it as Ctrl-C does, and what it started ends with it.

Where a command was started in the background, by `nohup` or by many a CI runner, Ctrl-C's signal is ignored.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE = 5.0  # seconds a process has to end by itself


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def exit_code(why: KeyboardInterrupt) -> int:
    """As in a shell: 128 plus the number of the signal."""
    return 128 + (signal.SIGTERM if isinstance(why, Terminated) else signal.SIGINT)


@contextmanager
def by_sigterm() -> Iterator[None]:
    """While this lasts, SIGTERM is as Ctrl-C, so that everything is closed in order; a second one ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return

    def end(_: int, __: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end(process: subprocess.Popen[bytes], grace: float = GRACE) -> None:
    """Ask a process to end; one that does not is killed."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
