"""`coterie client`: starts a SuperNode and answers its messages in this process, with this client's data."""

from __future__ import annotations

import errno
import math
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from flwr.app import Message

from coterie.core.errors import CoterieError
from coterie.network.certificates import ClientFiles, client_files
from coterie.network.flower import processes
from coterie.network.flower.internals import SubStatus, pull_task_input, push_message, push_task_output
from coterie.network.flower.processes import AcquiredTask, Address, Pulse
from coterie.network.flower.transport import from_records, to_records
from coterie.network.messages import Refusal
from coterie.network.wire import Payload, WireError, encode
from coterie.network.worker import ClientWorker

LOOK = 5.0  # seconds in which a server must take a connection, and answer
FIND_AGAIN = 1.0  # seconds between two looks for the server


@dataclass(frozen=True)
class ServerConnection:
    """The server, and how this client proves itself to it (None: without TLS and keys)."""

    server: str  # host:port
    files: ClientFiles | None
    look: float = 1.0  # seconds between two looks for a message


def find(to: ServerConnection, patience: float, say: Callable[[str], None]) -> None:
    """Wait until the server is there. A client that finds it speaking otherwise gives up after so many seconds."""
    told, since = "", time.monotonic()
    while True:
        try:
            why = _mismatch(to)
            if why is None:
                break
            if time.monotonic() - since >= patience:
                raise CoterieError(why, code="network-refused")
            line = f"{why}; trying again for {patience:g} s"
        except OSError as error:
            since = time.monotonic()
            line = f"nobody answers at {to.server} yet ({error.strerror or error}); trying on"
        if line != told:
            say(line)
            told = line
        time.sleep(FIND_AGAIN)
    say(f"connecting to {to.server}")


def _mismatch(to: ServerConnection) -> str | None:
    """Why this client and the server cannot understand each other, if so; an OSError where nobody is there."""
    if to.files is not None:
        client_files(to.files.ca.parent)  # the directory may be gone since it was first read
    host, _, port = to.server.rpartition(":")
    host = host.strip("[]")
    with socket.create_connection((host, int(port)), timeout=LOOK) as line:
        return _plaintext(line, to.server) if to.files is None else _tls(line, host, to)


def _plaintext(line: socket.socket, server: str) -> str | None:
    try:
        line.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        first = line.recv(5)
    except TimeoutError:
        return None  # busy; what becomes of it is seen later
    except ConnectionError:
        first = b""
    if first == b"HTTP/":
        return None
    return f"the server at {server} wants TLS and a key, this client has neither: give --key DIR instead of --insecure"


def _tls(line: socket.socket, host: str, to: ServerConnection) -> str | None:
    assert to.files is not None
    try:
        context = ssl.create_default_context(cafile=str(to.files.ca))
    except OSError as error:  # a missing or damaged file is not an absent server
        raise CoterieError(
            f"{to.files.ca}: cannot be read ({error.strerror or error}); ask for the whole directory again (NAME, "
            "NAME.pub and ca.crt)",
            code="certificate-invalid",
        ) from None
    try:
        with context.wrap_socket(line, server_hostname=host):
            return None
    except ssl.SSLCertVerificationError:
        return None  # the SuperNode says more about it
    except TimeoutError:
        return None
    except (ssl.SSLEOFError, ConnectionError) as error:
        # A proxy whose server is not there, or a server with too many connections: it may come back any time.
        raise OSError(errno.ECONNRESET, "it ends connections before TLS is agreed upon") from error
    except ssl.SSLError:
        return (
            f"the server at {to.server} does not speak TLS, so this client does not talk to it: was it started with "
            "--insecure, or is it something else?"
        )


__all__ = ["ServerConnection", "run_client"]

PROGRAM, TASK = "flower-supernode", "flwr-clientapp"
POLL = 2.0  # seconds between two checks for a message, without a sign of the SuperNode
# Seconds without a request that the server answered, after which a SuperNode is started again: longer than any single
# request may take (see `guard.WHOLE`).
SILENCE = 660.0
ACTIVE = 60.0  # seconds a server has at least to admit a client after accepting its connection
AGAIN = 3.0  # seconds before a SuperNode is started again
LINGER = 3.0  # seconds, and those between two looks, in which a SuperNode takes the last answer to the server
START = 120.0  # seconds a SuperNode has to listen
PATIENCE = 3.0  # seconds in which the SuperNode must answer
WRONG_SERVER = "CERTIFICATE_VERIFY_FAILED"  # what a SuperNode says where the CA does not vouch for the server
NOT_ADMITTED = "Failed to activate SuperNode"  # and where its key is unknown, or where it is taken to be there already
ADMITTED = "SuperNode ID:"  # and where it is there
REFUSED_FOR = 150.0  # seconds: a node that was killed is taken to be there for half a minute


def run_client(
    to: ServerConnection,
    worker: ClientWorker,
    home: Path,
    port: int | None = None,
    patience: float = REFUSED_FOR,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer the server's messages until this process is ended, the server refuses this client, or its privacy
    budget is spent. A SuperNode that ends is started again.

    patience: seconds to try again if the server does not admit this client.
    """
    say(worker.describe())  # a mistake in the data is reported before anything is sent
    if worker.guard is not None and worker.guard.spent:
        say(f"{worker.guard.spent}; it takes no part")
        return
    at = Address("127.0.0.1", port or processes.free_port(), None)
    refused: float | None = None  # since when
    while True:
        find(to, patience, say)
        secret = _fresh_secret(home)
        process, pulse = processes.start_supernode(_command(to, at, secret), home, to.look)
        try:
            processes.wait_for_port(process, at, home, PROGRAM, START)
            admission = _Admission(home, to.server, max(patience, ACTIVE))
            answered = _answer(process, at, secret.read_bytes(), worker, pulse, admission, to.look + LINGER)
        finally:
            processes.stop(process)
            pulse.close()
            secret.unlink(missing_ok=True)
        if _has_left(worker, to, say):
            return
        said = processes.last_words(home, PROGRAM)
        refused = (refused or time.monotonic()) if NOT_ADMITTED in said and not answered else None
        if WRONG_SERVER in said:
            raise CoterieError(f"the server at {to.server} does not admit this client: {said}", code="network-refused")
        if refused is not None and time.monotonic() - refused > patience:
            raise CoterieError(
                f"the server at {to.server} does not admit this client: its key is not, or no longer, known there "
                f"(revoked, replaced or expired), or another process uses it. Flower says: {said}",
                code="network-refused",
            )
        if refused is not None:
            say("not admitted yet (unknown key, or the server waits for this client's last process); trying again")
        else:
            say(f"the SuperNode ended ({said}); starting it again")
        time.sleep(AGAIN)


def _has_left(worker: ClientWorker, to: ServerConnection, say: Callable[[str], None]) -> bool:
    """Whether the client takes no further part since its privacy budget is spent. Raises if the server refuses it."""
    if worker.refused is not None:
        raise CoterieError(f"the server at {to.server} refuses this client: {worker.refused}", code="network-refused")
    if worker.spent is not None:
        say(f"{worker.spent}; it has left")
    return worker.spent is not None


@dataclass
class _Admission:
    """Whether the server has admitted this client; one that accepts the connection and never answers has not."""

    home: Path
    server: str
    patience: float
    since: float = field(default_factory=time.monotonic)
    admitted: bool = False

    def check(self) -> None:
        """Give up if the server has not admitted this client in time."""
        if self.admitted:
            return
        self.admitted = ADMITTED in processes.words(self.home, PROGRAM)
        if not self.admitted and time.monotonic() - self.since > self.patience:
            raise CoterieError(
                f"the server at {self.server} accepts connections, but has not admitted this client after "
                f"{self.patience:g} s",
                code="network-refused",
            )


def _fresh_secret(home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return processes.secret_file(home)


def _command(to: ServerConnection, at: Address, secret: Path) -> list[str]:
    command = [PROGRAM, "--superlink", to.server, "--host", at.host, "--port", str(at.port)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    if to.files is None:
        return [*command, "--insecure"]
    return [*command, "--root-certificates", str(to.files.ca), "--auth-supernode-private-key", str(to.files.key)]


def _answer(
    process: subprocess.Popen[bytes],
    at: Address,
    secret: bytes,
    worker: ClientWorker,
    pulse: Pulse,
    admission: _Admission,
    linger: float,
) -> int:
    """Message after message, until the SuperNode ends, or so many seconds after the last one that is answered; returns
    how many there were."""
    handler, over = _MessageHandler(worker, at), math.inf
    with processes.talking(at, PATIENCE, *processes.for_tasks(secret)) as client:
        while process.poll() is None and time.monotonic() < over:
            admission.check()
            if pulse.silence > SILENCE:
                worker.say(f"the SuperNode has not reached the server for {SILENCE:g} s; ending it")
                break
            if over == math.inf and (worker.refused is not None or worker.spent is not None):
                over = time.monotonic() + linger
            with suppress(httpx.HTTPError):  # the SuperNode has ended, or is about to
                taken = processes.acquire(client, TASK)
                if taken is not None:
                    # A thread of its own: the message of a run that died in between is waited for for hours, in vain.
                    threading.Thread(target=handler.serve, args=(taken,), daemon=True).start()
                    continue
            pulse.wait(POLL)
    return handler.served


class _MessageHandler:
    """Answers messages, one at a time."""

    def __init__(self, worker: ClientWorker, at: Address) -> None:
        self.worker, self.at = worker, at
        self.served = 0
        self._turn = threading.Lock()

    def serve(self, taken: AcquiredTask) -> None:
        """One message. Flower's bundle, which comes with it, is left alone."""
        try:
            with (
                processes.talking(self.at, PATIENCE, *processes.for_a_task(taken.token, TASK)) as client,
                processes.beating(client),
            ):
                message, context, _, _ = pull_task_input(client)
                push_message(client, Message(to_records(self._answered(message)), reply_to=message), context)
                push_task_output(client, context, SubStatus.COMPLETED, "")
        except Exception as error:  # whatever Flower makes of a message that is gone; the server misses this client
            self.worker.say(f"a message could not be answered ({type(error).__name__}: {' '.join(str(error).split())})")

    def _answered(self, message: Message) -> Payload:
        with self._turn:
            self.served += 1
            try:
                return self.worker.answer(from_records(message.content))
            except WireError as error:
                return encode(Refusal.of(error))
