"""A proxy between client and server that goes on accepting connections while the server is gone: it cuts handshakes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from federation import Stage, until, write_digits

pytest.importorskip("flwr")
pytestmark = pytest.mark.distributed

WORDS = ["model=linear", "method.name=fedavg", "rounds=1000", "network.clients=1", "evaluate_every=1000"]


class Forward:
    """Forwards a port of this machine to another one, or accepts connections and closes them."""

    def __init__(self, to: int) -> None:
        self.to, self.cut, self.accepted = to, threading.Event(), 0
        self.lines: list[socket.socket] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.server.getsockname()[1])
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self) -> None:
        while True:
            try:
                here, _ = self.server.accept()
            except OSError:
                return
            self.accepted += 1
            if self.cut.is_set():
                with here, suppress(OSError):
                    here.settimeout(5)
                    here.recv(1 << 16)  # the client's first words of TLS: it is then closed, not reset
                continue
            try:
                there = socket.create_connection(("127.0.0.1", self.to), 10)
            except OSError:
                here.close()
                continue
            self.lines += [here, there]
            for a, b in ((here, there), (there, here)):
                threading.Thread(target=self.pump, args=(a, b), daemon=True).start()

    @staticmethod
    def pump(a: socket.socket, b: socket.socket) -> None:
        with suppress(OSError):
            while data := a.recv(1 << 16):
                b.sendall(data)
        with suppress(OSError):
            b.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        self.cut.set()
        for line in self.lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


@contextmanager
def forwarding(to: int) -> Iterator[Forward]:
    made = Forward(to)
    try:
        yield made
    finally:
        made.hang_up()
        with suppress(OSError):
            made.server.shutdown(socket.SHUT_RDWR)
        made.thread.join(10)
        for line in (made.server, *made.lines):
            line.close()


def test_a_cut_tls_handshake_does_not_end_a_client(tmp_path: Path) -> None:
    write_digits(tmp_path, ("anna",))
    words = [sys.executable, "-m", "coterie.tools.cli.main", "certs", "certs", "--client", "anna"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    with ExitStack() as stack:
        stage = Stage(tmp_path)
        stack.callback(stage.close)
        forward = stack.enter_context(forwarding(stage.port))
        stage.server(*WORDS, "--out", "run")
        listening, stage.port = stage.port, forward.port
        stage.client("anna")
        stage.port = listening
        stage.after_round("run", 1, 180)
        (first,) = stage.supernodes("anna")
        forward.hang_up()
        seen = forward.accepted
        until(lambda: forward.accepted > seen + 3, 60, stage.everything_said)
        until(lambda: first not in stage.supernodes("anna"), 60, stage.everything_said)
        forward.cut.clear()
        before = len(stage.rounds("run"))
        until(lambda: len(stage.rounds("run")) > before + 1, 180, stage.everything_said)
        assert "starting it again" in stage.said("anna")
        assert stage.started[1].poll() is None
