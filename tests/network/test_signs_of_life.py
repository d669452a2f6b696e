"""A SuperNode whose main loop has ended, or has not reached its server for long: the client notices both."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("flwr", reason="comes with coterie[flower]")

from coterie.network.flower.launcher import SignsOfLife
from coterie.network.flower.processes import Pulse

LINGERING = """
import sys, threading, time
from coterie.network.flower import launcher

launcher.GRACE = 0.2

def program():
    threading.Thread(target=time.sleep, args=(300,)).start()  # as the web server of a SuperNode
    {end}

launcher.run_to_the_end(program)
"""


@pytest.mark.skipif(os.name == "nt", reason="no pipes to inherit there")
@pytest.mark.parametrize(
    ("end", "code"), [("return None", 0), ("sys.exit(7)", 7), ("raise ValueError('cut')", 1), ("sys.exit('why')", 1)]
)
def test_a_program_whose_main_thread_is_over_ends(end: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LINGERING.format(end=end)], timeout=120, capture_output=True, check=False
    )
    assert done.returncode == code, done.stderr


@pytest.mark.skipif(os.name == "nt", reason="no pipes to inherit there")
def test_only_requests_of_the_main_loop_are_signs_of_life() -> None:
    here, there = os.pipe()
    now = [100.0]
    pulse, log = Pulse(here, lambda: now[0]), logging.getLogger("test of signs")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(SignsOfLife(there))
    try:
        now[0] = 130.0
        other = threading.Thread(target=log.info, args=("a heartbeat",))
        other.start()
        other.join()
        pulse.wait(0)
        assert pulse.silence == 30
        log.info("a look for messages")
        pulse.wait(5)
        assert pulse.silence == 0
        for _ in range(100_000):  # more than a pipe holds: nobody waits
            log.info("a look for messages")
    finally:
        log.handlers.clear()
        os.close(there)
    began = time.monotonic()
    pulse.wait(5)  # what is left
    while time.monotonic() - began < 5 and pulse._end is not None:
        pulse.wait(5)
    assert pulse._end is None, "closed with its other end"
    assert pulse.silence == 0
    pulse.close()
