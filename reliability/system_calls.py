"""A system call fails, or the process is killed in it: `python reliability/system_calls.py --error ENOSPC`.

strace (Linux) makes the n-th call fail, for every n: opening, reading, writing, flushing, renaming, removing, making
a directory. With --calls memory no memory is given from the n-th call on. The run must end in the same bits, or with
one clear error; and after that, resuming must give the same bits.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from trial import (
    CLEAR,
    Ended,
    Row,
    clear,
    command_line,
    differences,
    finish,
    fork,
    go,
    left_alone,
    resumed_from,
    saved_round,
    workshop,
)

CALLS = {
    "files": ("openat", "write", "pwrite64", "fsync", "rename", "unlink", "mkdir", "ftruncate", "flock"),
    "reads": ("read", "pread64", "getdents64"),
    "memory": ("mmap", "brk", "mremap"),
}


@dataclass(frozen=True)
class Injection:
    """Of these calls the n-th fails, or with `on` every one from the n-th; or the process is killed there."""

    call: str
    number: int
    error: str
    on: bool = False

    def words(self) -> list[str]:
        """For strace."""
        how = "signal=SIGKILL" if self.error == "KILL" else f"error={self.error}"
        return ["-e", f"inject={self.call}:{how}:when={self.number}{'+' if self.on else ''}"]


def traced(path: Path, place: Path, log: Path, words: list[str]) -> Ended:
    """The run under strace, from its first moment on."""

    def work() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        go(path)

    child = fork(work, place / "report")
    os.waitpid(child.pid, os.WUNTRACED)
    tracer = subprocess.Popen(
        ["strace", "-qq", "-f", "-p", str(child.pid), "-o", str(log), *words], stderr=subprocess.DEVNULL
    )
    status = Path(f"/proc/{child.pid}/status")
    while "TracerPid:\t0" in status.read_text():
        if tracer.poll() is not None:
            os.kill(child.pid, signal.SIGKILL)
            raise SystemExit("strace cannot trace here")
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGCONT)
    ended = child.wait()
    tracer.wait()
    return ended


def counted(place: Path, calls: tuple[str, ...]) -> dict[str, int]:
    """How often a run that is left alone makes each call."""
    log = place / "calls"
    traced(place / "counted", place, log, ["-e", f"trace={','.join(calls)}"])
    text = log.read_text(errors="replace")
    return {call: len(re.findall(rf"^\d+ +{call}\(", text, re.MULTILINE)) for call in calls}


def judged(injection: Injection, place: Path, whole: Path) -> tuple[bool, str | None]:
    """Whether a saved round was lost, and what is wrong."""
    path = place / "run"
    clear(path)
    ended = traced(path, place, place / "log", ["-e", f"trace={injection.call}", *injection.words()])
    if ended.code == 0:
        found = differences(path, whole)
        return False, f"{injection}: {found}" if found else None
    if ended.code > 0 and ended.code != CLEAR:
        return False, f"{injection}: a traceback: {ended.said.strip().splitlines()[-1:]}"
    saved = saved_round(path)
    again, done = resumed_from(path, "sequential", place / "report")
    found = differences(path, whole) if not again.code else [again.said[-200:]]
    return done < saved, f"{injection}: after resuming {found}" if found else None


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", choices=[*CALLS], default="files")
    parser.add_argument("--error", choices=("EIO", "ENOSPC", "EROFS", "ENOMEM", "KILL"), default="EIO")
    parser.add_argument("--every", type=int, default=1, help="every so many calls only")
    asked = parser.parse_args()
    lost, wrong = 0, list[str]()
    with workshop() as place:
        whole = left_alone(place, "sequential")
        numbers = counted(place, CALLS[asked.calls])
        tries = [
            Injection(call, n, asked.error, asked.calls == "memory")
            for call, many in numbers.items()
            for n in range(1, many + 1, asked.every)
        ]
        for injection in tries:
            gone, what = judged(injection, place, whole)
            lost += gone
            if what:
                wrong.append(what)
                print(what, flush=True)
    made = ", ".join(f"{call} {many}" for call, many in numbers.items() if many)
    remark = f"calls of a run: {made}" + (f"; tried every {asked.every}th" if asked.every > 1 else "")
    fault = f"{asked.error} at every call ({asked.calls})"
    row = Row(fault, command_line(), len(tries), len(tries) - len(wrong), lost, len(wrong), "; ".join([remark, *wrong]))
    row.write(f"calls-{asked.calls}-{asked.error}")
    finish([row])


if __name__ == "__main__":
    main()
