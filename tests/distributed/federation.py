"""A real federation on this machine: `coterie server` and `coterie client` as a user starts them, and ends to both."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import watchman

import coterie
from coterie.data.federation import Federation
from coterie.network.client_data import own_data
from coterie.network.config import read
from coterie.training.build import build_method
from coterie.training.result import Result

MARK = "COTERIE_TEST_MARK"
NAMES = ("anna", "bert", "cora")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(what: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    """Wait for something to come true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.2)


@dataclass
class Stage:
    """A directory, a port, and every process that was started; all of them carry a mark by which they are found."""

    path: Path
    port: int = field(default_factory=free_port)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watchman = watchman.post(f"{MARK}={self.mark}")

    # ------------------------------------------------------------------------------------------- processes

    def start(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        """A command of ours; what it says goes to a log."""
        environment = os.environ | {MARK: self.mark, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        with (self.path / f"{log}.log").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.path,
                env=environment,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
            )
        self.started.append(process)
        return process

    def server(self, *words: str, log: str = "server") -> subprocess.Popen[bytes]:
        return self.start(
            log, "-m", "coterie.tools.cli.main", "server", *words, "--certs", "certs", "--port", str(self.port)
        )

    def client(self, name: str, *words: str, key: str | None = None, log: str | None = None) -> subprocess.Popen[bytes]:
        how = words or ("--key", key or f"certs/clients/{name}")
        where = ("--server", f"127.0.0.1:{self.port}", "--data", f"{name}.npz", "--state", f"state-{log or name}")
        return self.start(log or name, "-m", "coterie.tools.cli.main", "client", *where, *how)

    def cutting_client(self, name: str) -> subprocess.Popen[bytes]:
        """One whose upload can be cut in the middle."""
        where = (f"127.0.0.1:{self.port}", f"certs/clients/{name}", f"{name}.npz", f"state-{name}")
        return self.start(name, str(Path(__file__).with_name("cutting.py")), *where)

    def supernodes(self, name: str) -> list[int]:
        """The SuperNodes of a client."""
        return [pid for pid, words in self.alive() if f"clients/{name}/{name}" in words and "flower-supernode" in words]

    def said(self, log: str) -> str:
        file = self.path / f"{log}.log"
        return file.read_text(errors="replace") if file.is_file() else ""

    def everything_said(self) -> str:
        return "\n".join(
            f"--- {log.stem}\n{log.read_text(errors='replace')[-3000:]}" for log in self.path.glob("*.log")
        )

    def ends(self, process: subprocess.Popen[bytes], seconds: float = 120) -> int:
        """The exit code of a process that should end by itself."""
        until(lambda: process.poll() is not None, seconds, self.everything_said)
        return int(process.returncode)

    def alive(self) -> list[tuple[int, str]]:
        """Every process that descends from here: its number and its command."""
        found = []
        for pid in watchman.marked(f"{MARK}={self.mark}"):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # ended meanwhile
            found.append((pid, words))
        return found

    def pid_of(self, program: str, near: str = "") -> int:
        """Of the one process that runs this program."""
        (found,) = [pid for pid, words in self.alive() if program in words and near in words]
        return found

    def close(self) -> None:
        """End what is left, as a user would with `kill`; nothing may stay behind. (Not with Ctrl-C's signal, which is
        ignored where the tests were started in the background.)"""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        try:
            until(lambda: not self.alive(), 30, lambda: f"left behind: {self.alive()}")
        finally:
            watchman.send_off(self.watchman)

    # ------------------------------------------------------------------------------------------------ runs

    def rounds(self, run: str) -> list[dict[str, Any]]:
        """The rounds a run has behind it, as its log tells."""
        file = self.path / run / "rounds.jsonl"
        found = []
        for line in file.read_text().splitlines() if file.is_file() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def after_round(self, run: str, many: int, seconds: float = 120) -> None:
        until(lambda: len(self.rounds(run)) >= many, seconds, self.everything_said)

    def clients_of(self, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.path / run / "clients.json").read_text())
        return found


def write_digits(folder: Path, names: tuple[str, ...]) -> None:
    """Digits for each name, every other client's turned upside down."""
    from coterie.data.sets.images import Digits

    data = Digits()()
    x, y = data.domain.take(data.y.new_tensor(range(len(data.y))))
    per = 60
    for i, name in enumerate(names):
        mine = x[i * per : (i + 1) * per].numpy()
        mine = np.ascontiguousarray(mine[..., ::-1, ::-1]) if i % 2 else mine
        split = np.array(["train"] * (per - 20) + ["test"] * 20)
        np.savez(folder / f"{name}.npz", x=mine, y=y[i * per : (i + 1) * per].numpy(), split=split)


def in_process(folder: Path, names: tuple[str, ...], words: list[str], out: Path) -> Result[Any]:
    """The same run by the reference engine, on the same files."""
    config = read(None, words)
    parts = []
    for name in names:
        one = own_data(str(folder / f"{name}.npz"))
        (x, y), (x_test, y_test) = one.samples(0, "train"), one.samples(0, "test")
        parts.append((x, y, x_test, y_test))
    federation = Federation.from_arrays(parts, outputs=10, standardise=False)
    settings = config.settings
    return coterie.run(
        *(build_method(config), federation, config.model.name),
        rounds=settings.rounds,
        evaluate_every=settings.evaluate_every,
        checkpoint_every=1,
        seed=settings.seed,
        aggregator=settings.aggregator,
        out=out,
    )
