"""Start, talk to and stop Flower's processes.

Flower would start a process for every message and run the code of its bundle. Here a long-running process acquires the
tasks; it has everything imported and runs only this library.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from coterie.core.errors import CoterieError
from coterie.core.processes import ATTENDED, GRACE, end
from coterie.network.flower.internals import (
    AcquireTaskRequest,
    RetryInvoker,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SendTaskHeartbeatRequest,
    SuperExecAuthHttpInterceptor,
    exponential,
)
from coterie.network.flower.launcher import LOOK, SIGNS

BEGUN = "=== started"  # a line of a program's log
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
LAUNCHER: tuple[str, ...] = (
    "-m",
    "coterie.network.flower.launcher",
)  # what Python is told to run a Flower program with
WITHOUT_PULSE = 0.5  # seconds between two looks for a message, without signs of life
BEAT = 15.0  # seconds between two signs of life; Flower gives a task up after about a minute


@dataclass(frozen=True)
class Address:
    """Where something listens, and the certificate that vouches for it (None: no TLS)."""

    host: str
    port: int
    ca: Path | None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def patience(seconds: float) -> RetryInvoker:
    """Try again for so long where nobody answers. (Flower's own would try for ever, or interrupt this process.)"""
    return RetryInvoker(
        wait_gen_factory=lambda: exponential(max_delay=2),
        recoverable_exceptions=httpx.TransportError,
        max_tries=None,
        max_time=seconds,
    )


def secret_file(folder: Path) -> Path:
    """A secret that only this user can read, by which a process of ours may take Flower's tasks."""
    file = folder / "secret"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(secrets.token_bytes(32))
    return file


class Pulse:
    """The signs of life of a SuperNode: one for every request that the server has answered. They also wake the client,
    which then looks for a message."""

    def __init__(self, end: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """end: the end of a pipe to read from; None on systems where a process cannot inherit the other one."""
        self._end, self._clock = end, clock
        self._last = clock()

    @property
    def silence(self) -> float:
        """Seconds since the last sign; 0 where there can be none."""
        return 0.0 if self._end is None else self._clock() - self._last

    def wait(self, seconds: float) -> None:
        """Until there is a sign of life, or so many seconds."""
        if self._end is None:
            time.sleep(min(seconds, WITHOUT_PULSE))
        elif select.select([self._end], [], [], seconds)[0]:
            if os.read(self._end, 1 << 16):
                self._last = self._clock()
            else:
                self.close()  # the other end is closed

    def close(self) -> None:
        """Close the pipe."""
        if self._end is not None:
            os.close(self._end)
            self._end = None


def start_supernode(command: Sequence[str], home: Path, look: float) -> tuple[subprocess.Popen[bytes], Pulse]:
    """Start a SuperNode, with its signs of life. look: seconds between two checks for a message."""
    if os.name == "nt":
        return start(command, home, {LOOK: str(look)}), Pulse(None)
    here, there = os.pipe()
    try:
        return start(command, home, {LOOK: str(look), SIGNS: str(there)}, (there,)), Pulse(here)
    except BaseException:
        os.close(here)
        raise
    finally:
        os.close(there)


def start(
    command: Sequence[str], home: Path, more: Mapping[str, str] | None = None, files: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A Flower program that ends with this process; what it says goes to a log in `home`.

    more: for its environment. files: open ones that it is given.
    """
    environment = os.environ | {
        **(more or {}),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": "1",
        ATTENDED: "1",
    }
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (home / f"{command[0]}.log").open("ab") as log:
        log.write(f"{BEGUN} {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        log.flush()
        return subprocess.Popen(
            [sys.executable, *LAUNCHER, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=files,
            start_new_session=True,  # Ctrl-C is for this process, which may still need the other one
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that `start` started."""
    end(process)
    if process.stdin is not None:
        process.stdin.close()


def words(home: Path, program: str) -> str:
    """What a program has logged since it was last started."""
    try:
        text = (home / f"{program}.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(BEGUN)[2]


def last_words(home: Path, program: str) -> str:
    """Why a program ended: Flower says so after its exit code; otherwise the last line of its log."""
    lines = [" ".join(line.split()) for line in words(home, program).splitlines() if line.strip()]
    code = next((i for i, line in enumerate(lines) if "Exit Code:" in line), None)
    telling = lines[code + 1 : code + 4] if code is not None else lines[-1:]
    return " ".join(telling)[:400] if telling else "it said nothing"


def wait_for_port(process: subprocess.Popen[bytes], at: Address, home: Path, program: str, seconds: float) -> None:
    """Until it listens."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise CoterieError(
                f"{program} ended with code {process.returncode}: {last_words(home, program)}",
                code="network-process-failed",
            )
        with socket.socket(socket.AF_INET6 if ":" in at.host else socket.AF_INET) as probe:
            probe.settimeout(1)
            if probe.connect_ex((_reachable(at.host), at.port)) == 0:
                return
        time.sleep(0.1)
    raise CoterieError(
        f"{program} does not listen on {at} after {seconds:g} s: {last_words(home, program)}",
        code="network-process-failed",
    )


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def free_port(host: str = "127.0.0.1") -> int:
    """A free port."""
    with socket.socket() as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def check_free(host: str, port: int) -> None:
    """Raise if the port is in use, before anything is started."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CoterieError(
                f"--port {port}: cannot be listened on at {host} ({error.strerror})", code="address-unavailable"
            ) from None


@contextmanager
def talking(at: Address, seconds: float, *interceptors: Any) -> Iterator[RuntimeHttpClient]:
    """A connection to a runtime, closed afterwards."""
    client = RuntimeHttpClient.from_server_address(
        server_address=str(at),
        insecure=at.ca is None,
        root_certificates=None if at.ca is None else at.ca.read_bytes(),
        interceptors=list(interceptors),
        retry_invoker=patience(seconds),
    )
    try:
        yield client
    finally:
        client.close()


def for_tasks(secret: bytes) -> tuple[Any, ...]:
    """The credentials to acquire tasks."""
    return (
        RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE}),
    )


def for_a_task(token: str, program: str) -> tuple[Any, ...]:
    """The credentials to carry out a task."""
    return (RuntimeVersionHttpInterceptor(component_name=program), RuntimeTokenHttpInterceptor(token))


@dataclass(frozen=True)
class AcquiredTask:
    """A task, and the token that stands for it."""

    run: int
    token: str


def acquire(client: RuntimeHttpClient, program: str) -> AcquiredTask | None:
    """The next task for this program, if there is one."""
    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[program]))
    return AcquiredTask(found.task.run_id, found.token) if found.HasField("task") and found.token else None


@contextmanager
def beating(client: RuntimeHttpClient) -> Iterator[None]:
    """Send heartbeats for the task meanwhile. (Flower's own sender interrupts the process when refused.)"""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            with contextlib.suppress(httpx.HTTPError):  # whoever carries out the task will notice
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(GRACE)
