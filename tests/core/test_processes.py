"""Processes a few at a time: none outlives the one that started it, none stops the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.core.processes import ATTENDED, Failed, Look, UnderWay, carry_out, start

CHILD = """
import os, sys, time
from pathlib import Path
from coterie.core.processes import end_with_parent
end_with_parent()
Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(120)
"""
PARENT = """
import sys
from coterie.core.processes import carry_out, start
carry_out([1], lambda job: start(job, ["-c", sys.argv[1], sys.argv[2]]), 1)
"""


def there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended and was not waited for is not there either.
    state = Path(f"/proc/{pid}/stat")
    return not (state.is_file() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """However that ended: nobody is there to stop the child after a SIGKILL."""
    note = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD, str(note)])
    try:
        deadline = time.monotonic() + 60
        while not (note.is_file() and note.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        child = int(note.read_text())
        assert there(child)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    while there(child) and time.monotonic() < deadline + 60:
        time.sleep(0.05)
    assert not there(child)


DEAF = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1]).touch()
time.sleep(120)
"""


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pool is interrupted, nobody waits for ever."""
    monkeypatch.setattr("coterie.core.processes.end.__defaults__", (0.1,))
    note, begun = tmp_path / "deaf", list[UnderWay[int]]()

    def interrupt(look: Look[int]) -> None:
        if note.exists():
            raise KeyboardInterrupt

    def begin_deaf(job: int) -> UnderWay[int]:
        begun.append(start(job, ["-c", DEAF, str(note)]))
        return begun[0]

    with pytest.raises(KeyboardInterrupt):
        carry_out([1], begin_deaf, 1, interrupt)
    assert begun[0].process.returncode == -signal.SIGKILL


def begin(code: str) -> UnderWay[str]:
    return start(code, ["-c", code])


def test_one_that_fails_does_not_stop_the_others() -> None:
    looks: list[Look[str]] = []
    fails = "import sys; sys.stderr.write('Traceback\\nerror: no such thing\\n'); sys.exit(2)"
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    silent = "raise SystemExit(7)"
    breaks = "next(iter(()))"
    failed = carry_out([fails, "pass", dies, silent, breaks, "print('fine')"], begin, 2, looks.append)
    assert {one.job: one.why for one in failed} == {
        fails: "no such thing",
        dies: "killed by signal 9; run the same command to continue",
        silent: "exit code 7",
        breaks: 'StopIteration (File "<string>", line 1, in <module>)',
    }
    assert Failed(fails, "no such thing") in failed
    assert looks[-1].done == 6
    assert max(len(look.at) for look in looks) <= 2
    ended = dict(pair for look in looks for pair in look.ended)
    assert ended == {"pass": None, "print('fine')": None} | {one.job: one.why for one in failed}


def test_a_process_has_one_thread_and_knows_that_it_is_attended() -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", ATTENDED)
    asks = f"import os; assert [os.environ[name] for name in {names}] == ['1'] * 3"
    end = "import os; from coterie.core.processes import end_with_parent as end; end()"
    forgets = f"{end}; assert '{ATTENDED}' not in os.environ"
    assert carry_out([asks, forgets], begin, 2) == []
