"""Flower's processes, and the tasks they hand out: started, talked to, ended.

Flower would start a new process for every message and run in it whatever code its bundle brings. Here tasks are taken
by a process of our own, which has everything imported already and runs nothing but this library.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient

from coterie.errors import CoterieError
from coterie.network.tethered import LOOK
from coterie.pool import ATTENDED

BEGUN = "=== started"  # a line of a program's log
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
GRACE = 5.0  # seconds a process has to end by itself
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


def start(command: Sequence[str], home: Path, look: float = 3.0) -> subprocess.Popen[bytes]:
    """A Flower program that ends with this process; what it says goes to a log in `home`.

    look: of a SuperNode, seconds between two looks for a message.
    """
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": "1",
        ATTENDED: "1",
        LOOK: str(look),
    }
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (home / f"{command[0]}.log").open("ab") as log:
        log.write(f"{BEGUN} {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        log.flush()
        return subprocess.Popen(
            [sys.executable, "-m", "coterie.network.tethered", *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that `start` started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdin is not None:
        process.stdin.close()


def last_words(home: Path, program: str) -> str:
    """Why a program ended: Flower says so after its exit code; otherwise the last line of its log."""
    try:
        text = (home / f"{program}.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    lines = [" ".join(line.split()) for line in text.rpartition(BEGUN)[2].splitlines() if line.strip()]
    code = next((i for i, line in enumerate(lines) if "Exit Code:" in line), None)
    telling = lines[code + 1 : code + 4] if code is not None else lines[-1:]
    return " ".join(telling)[:400] if telling else "it said nothing"


def wait_for_port(process: subprocess.Popen[bytes], at: Address, home: Path, program: str, seconds: float) -> None:
    """Until it listens."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise CoterieError(f"{program} ended with code {process.returncode}: {last_words(home, program)}")
        with socket.socket(socket.AF_INET6 if ":" in at.host else socket.AF_INET) as probe:
            probe.settimeout(1)
            if probe.connect_ex((_reachable(at.host), at.port)) == 0:
                return
        time.sleep(0.1)
    raise CoterieError(f"{program} does not listen on {at} after {seconds:g} s: {last_words(home, program)}")


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def check_free(host: str, port: int) -> None:
    """Say so before anything starts where the port is taken."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CoterieError(f"--port {port}: cannot be listened on at {host} ({error.strerror})") from None


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
    """What one who takes tasks must show."""
    return (
        RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE}),
    )


def for_a_task(token: str, program: str) -> tuple[Any, ...]:
    """What one who carries out a task must show."""
    return (RuntimeVersionHttpInterceptor(component_name=program), RuntimeTokenHttpInterceptor(token))


@dataclass(frozen=True)
class Taken:
    """A task, and the token that stands for it."""

    run: int
    token: str


def acquire(client: RuntimeHttpClient, program: str) -> Taken | None:
    """The next task for this program, if there is one."""
    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[program]))
    return Taken(found.task.run_id, found.token) if found.HasField("task") and found.token else None


@contextmanager
def beating(client: RuntimeHttpClient) -> Iterator[None]:
    """While this lasts, Flower is told that the task is alive. (Its own sender interrupts the process when refused.)"""
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
