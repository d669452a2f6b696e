"""How a command ends that has started others: SIGTERM ends it as Ctrl-C does, and what it started ends with it.

Where a command was started in the background, by `nohup` or by many a CI runner, Ctrl-C's signal is ignored.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
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


class Interruption:
    """A wish to stop that may come while something is under way that should be finished first, such as a round."""

    def __init__(self) -> None:
        self._why: KeyboardInterrupt | None = None
        self._held = False

    @property
    def came(self) -> bool:
        """Whether somebody wants it to stop."""
        return self._why is not None

    @property
    def wish(self) -> KeyboardInterrupt | None:
        """The wish that waits, if one does."""
        return self._why

    def heed(self) -> None:
        """Raise the wish that waits, if one does: for a place that may otherwise wait for ever, and loses nothing."""
        if self._why is not None:
            raise self._why

    def hear(self, why: KeyboardInterrupt) -> bool:
        """Note the first wish while it is held; every other one is raised. Returns True if it was noted."""
        if not self._held or self.came:
            raise why
        self._why = why
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """While this lasts, the first wish waits; it is raised at the end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._why is not None:
            raise self._why


@contextmanager
def interruptible(tell: Callable[[], None]) -> Iterator[Interruption]:
    """While this lasts, Ctrl-C and SIGTERM wait for what holds them; a second one ends at once. tell: one waits."""
    found = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield found  # only the main thread hears signals
        return

    def hear(number: int, _: FrameType | None) -> None:
        if found.hear(Terminated() if number == signal.SIGTERM else KeyboardInterrupt()):
            tell()

    heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, hear) for number in heard}
    try:
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
