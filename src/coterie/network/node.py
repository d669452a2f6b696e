"""`coterie client`: a SuperNode of its own, and its messages answered by this process, with this client's data."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from coterie.errors import CoterieError
from coterie.network import runtime
from coterie.network.certs import ClientFiles
from coterie.network.desk import Desk
from coterie.network.errand import Refusal
from coterie.network.records import from_records, to_records
from coterie.network.runtime import Address, Taken
from coterie.network.wire import Parcel, WireError, pack_up

PROGRAM, TASK = "flower-supernode", "flwr-clientapp"
POLL = 0.1  # seconds between two looks for a message
START = 120.0  # seconds a SuperNode has to listen
PATIENCE = 3.0  # seconds in which the SuperNode must answer
WRONG_SERVER = "CERTIFICATE_VERIFY_FAILED"  # what a SuperNode says where the CA does not vouch for the server
NOT_LET_IN = "Failed to activate SuperNode"  # and where its key is unknown, or where it is taken to be there already
REFUSED_FOR = 150.0  # seconds: a node that was killed is taken to be there for about a minute


@dataclass(frozen=True)
class Membership:
    """The server, and how this client proves itself to it (None: without TLS and keys)."""

    server: str  # host:port
    files: ClientFiles | None
    look: float = 1.0  # seconds between two looks for a message


def attend(
    to: Membership,
    desk: Desk,
    home: Path,
    port: int | None = None,
    patience: float = REFUSED_FOR,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer the server's messages until this process is ended. A SuperNode that ends is started again, also where the
    server does not let it in, for so many seconds."""
    about = desk.about()  # a mistake in the data is told before anything is sent
    say(f"{about.name}: {about.train} training and {about.test} test samples of shape {about.input_shape}")
    at = Address("127.0.0.1", port or runtime.free_port(), None)
    refused: float | None = None  # since when
    while True:
        secret = _fresh_secret(home)
        process = runtime.start(_command(to, at, secret), home, to.look)
        try:
            runtime.wait_for_port(process, at, home, PROGRAM, START)
            _look_for(to.server, process, say)
            answered = _answer(process, at, secret.read_bytes(), desk)
        finally:
            runtime.stop(process)
            secret.unlink(missing_ok=True)
        said = runtime.last_words(home, PROGRAM)
        refused = (refused or time.monotonic()) if NOT_LET_IN in said and not answered else None
        if WRONG_SERVER in said or (refused is not None and time.monotonic() - refused > patience):
            raise CoterieError(f"the server at {to.server} does not let this client in: {said}")
        if refused is not None:
            say("not let in yet: the server may not know the key, or still believe this client's last process; again")
        else:
            say(f"the SuperNode ended ({said}); starting it again")
        time.sleep(runtime.GRACE)


def _look_for(server: str, process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    """Say that the server is not there, while it is not: the SuperNode itself tries on without a word."""
    host, _, port = server.rpartition(":")
    told = False
    while process.poll() is None:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            break
        except OSError as error:
            if not told:
                say(f"nobody answers at {server} yet ({error.strerror or error}); trying on")
                told = True
            time.sleep(1)
    say(f"connecting to {server}")


def _fresh_secret(home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return runtime.secret_file(home)


def _command(to: Membership, at: Address, secret: Path) -> list[str]:
    command = [PROGRAM, "--superlink", to.server, "--host", at.host, "--port", str(at.port)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    if to.files is None:
        return [*command, "--insecure"]
    return [*command, "--root-certificates", str(to.files.ca), "--auth-supernode-private-key", str(to.files.key)]


def _answer(process: subprocess.Popen[bytes], at: Address, secret: bytes, desk: Desk) -> int:
    """Message after message, until the SuperNode ends; returns how many there were."""
    counter = _Counter(desk, at)
    with runtime.talking(at, PATIENCE, *runtime.for_tasks(secret)) as client:
        while process.poll() is None:
            with suppress(httpx.HTTPError):  # the SuperNode has ended, or is about to
                taken = runtime.acquire(client, TASK)
                if taken is not None:
                    # A thread of its own: the message of a run that died in between is waited for for hours, in vain.
                    threading.Thread(target=counter.serve, args=(taken,), daemon=True).start()
                    continue
            time.sleep(POLL)
    return counter.served


class _Counter:
    """Where messages are answered, one at a time."""

    def __init__(self, desk: Desk, at: Address) -> None:
        self.desk, self.at = desk, at
        self.served = 0
        self._turn = threading.Lock()

    def serve(self, taken: Taken) -> None:
        """One message. Flower's bundle, which comes with it, is left alone."""
        try:
            with (
                runtime.talking(self.at, PATIENCE, *runtime.for_a_task(taken.token, TASK)) as client,
                runtime.beating(client),
            ):
                message, context, _, _ = pull_task_input(client)
                push_message(client, Message(to_records(self._answered(message)), reply_to=message), context)
                push_task_output(client, context, SubStatus.COMPLETED, "")
        except Exception as error:  # whatever Flower makes of a message that is gone; the server misses this client
            self.desk.say(f"a message could not be answered ({type(error).__name__}: {' '.join(str(error).split())})")

    def _answered(self, message: Message) -> Parcel:
        with self._turn:
            self.served += 1
            try:
                return self.desk.answer(from_records(message.content))
            except WireError as error:
                return pack_up(Refusal.of(error))
