"""How a command ends that has started others, where Ctrl-C's signal is ignored too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from coterie.core.processes import Terminated, by_sigterm, end, exit_code, interruptible

CHILD = """
import signal, sys
signal.signal(signal.SIGTERM, {handler})
print("ready", flush=True)
signal.pause()
"""
CLOSES = """
import os, signal
from coterie.core.processes import Terminated, by_sigterm, exit_code
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
try:
    with by_sigterm():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            print("closed", flush=True)
except KeyboardInterrupt as why:
    os._exit(exit_code(why))
"""


def started(handler: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", CHILD.format(handler=handler)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


@pytest.mark.parametrize(
    ("handler", "code"), [("lambda *_: sys.exit(7)", 7), ("signal.SIG_IGN", -signal.SIGKILL)], ids=["hears", "deaf"]
)
def test_a_process_is_asked_to_end_and_then_killed(handler: str, code: int) -> None:
    process = started(handler)
    end(process, grace=0.2 if code < 0 else 30)
    assert process.returncode == code
    end(process)  # which has ended


def test_sigterm_closes_in_order_where_interrupts_are_ignored() -> None:
    """As under nohup."""
    done = subprocess.run(
        [sys.executable, "-c", CLOSES],
        capture_output=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        check=False,
    )
    assert (done.returncode, done.stdout) == (143, b"closed\n"), done.stderr


def test_afterwards_sigterm_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), by_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    assert exit_code(KeyboardInterrupt()) == 130


def test_in_another_thread_nothing_changes() -> None:
    seen: list[object] = []

    def enter() -> None:
        with by_sigterm():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_wish_to_stop_waits_while_it_is_held_and_a_second_one_does_not() -> None:
    told: list[str] = []
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    passed: list[str] = []

    def signalled(*numbers: int) -> None:
        with interruptible(lambda: told.append("waits")) as interruption:
            with interruption.held():
                for number in numbers:
                    os.kill(os.getpid(), number)
                    time.sleep(0.1)  # another thread may get the signal, and this one hear of it a little later
                    passed.append(f"{number} waits")
                assert interruption.came
            passed.append("the end")

    with pytest.raises(Terminated):
        signalled(signal.SIGTERM)
    assert len(passed) == 1
    with pytest.raises(KeyboardInterrupt):
        signalled(signal.SIGTERM, signal.SIGINT)  # the second one does not wait
    assert len(passed) == 2
    with pytest.raises(KeyboardInterrupt), interruptible(lambda: told.append("waits")):
        os.kill(os.getpid(), signal.SIGINT)  # nothing is held
    assert told == ["waits", "waits"]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
