"""Two Ray nodes of real processes: each in a network namespace of its own, or both on loopback where none can be made
(or NODES_ON_LOOPBACK is set).

Whatever is started carries a mark in its environment, and so do its children: what is killed at the end, and what is
looked for afterwards, is exactly that.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import watchman

BIN = Path(sys.executable).parent
PORT = 6390


@dataclass
class Nodes:
    """A head and a second node."""

    path: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    namespaces: bool = False
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.token("token")
        self.namespaces = self._make_namespaces()
        namespaces = [self._name(node) for node in (0, 1)] if self.namespaces else []
        self.watchman = watchman.post(f"NODES_MARK={self.mark}", namespaces)
        self.addresses = ("10.77.0.1", "10.77.0.2") if self.namespaces else ("127.0.0.2", "127.0.0.3")

    @property
    def address(self) -> str:
        """The head's."""
        return f"{self.addresses[0]}:{PORT}"

    def token(self, name: str) -> Path:
        """A new token in a file of its own."""
        file = self.path / name
        file.write_text(secrets.token_hex(32))
        file.chmod(0o600)
        return file

    def start(self) -> None:
        """Both nodes, one core each; clients on the second stop once it has had some."""
        head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.path / 'ray'}"]
        self._ray(0, head, {"ONLY_SO_MANY": "0"})
        self.wait_for(lambda: self._answers(), "the head")
        self._ray(1, [f"--address={self.address}"], {"ONLY_SO_MANY": "5"})
        self.wait_for(lambda: b"raylet" in b"".join(map(_command, self.alive(node=1))), "the second node")

    def spawn(
        self, command: Sequence[str], node: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A process on one of the nodes, but not of it."""
        inside = ["ip", "netns", "exec", self._name(node)] if self.namespaces else []
        log = (self.path / f"{len(self.processes)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [*inside, *command],
                env=self._environment("driver") | dict(env or {}),
                stdout=log,
                stderr=log,
                cwd=self.path,
            )
        self.processes.append(process)
        return process

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """What a process wrote."""
        return (self.path / f"{self.processes.index(process)}.log").read_text(errors="replace")

    def alive(self, node: int | None = None) -> list[int]:
        """The processes that were started here, and their children, wherever those have gone."""
        return watchman.marked(f"NODES_MARK={self.mark}" if node is None else f"NODES_MARK={self.mark}-{node}")

    def kill(self, node: int | None = None) -> None:
        """End them at once, without a word to the others."""
        deadline = time.monotonic() + 60
        while (pids := self.alive(node)) and time.monotonic() < deadline:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.1)
        for process in self.processes:
            process.poll()

    def close(self) -> list[int]:
        """End everything; returns what is left."""
        self.kill()
        for process in self.processes:
            process.wait(timeout=60)
        for node in (0, 1) if self.namespaces else ():
            subprocess.run(["ip", "netns", "del", self._name(node)], check=True)
        watchman.send_off(self.watchman)
        return self.alive()

    def wait_for(self, what: Callable[[], object], told: str, seconds: float = 180) -> None:
        """Until something is so."""
        deadline = time.monotonic() + seconds
        while not what():
            said = "\n".join(self.said(p)[-2000:] for p in self.processes)
            assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {told}\n{said}"
            time.sleep(0.2)

    def _name(self, node: int) -> str:
        return f"coterie-{self.mark[:6]}-{node}"

    def _environment(self, who: int | str) -> dict[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "NODES_MARK": f"{self.mark}-{who}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.path / "token"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }

    def _ray(self, node: int, options: Sequence[str], env: Mapping[str, str]) -> None:
        common = [f"--node-ip-address={self.addresses[node]}", "--num-cpus=1", "--block"]
        self.spawn(
            [str(BIN / "ray"), "start", *options, *common, "--object-store-memory=200000000"],
            node,
            self._environment(node) | dict(env),
        )

    def _answers(self) -> bool:
        check = [str(BIN / "ray"), "health-check", f"--address={self.address}"]
        inside = ["ip", "netns", "exec", self._name(0)] if self.namespaces else []
        return not subprocess.run([*inside, *check], env=self._environment("driver"), capture_output=True).returncode

    def _make_namespaces(self) -> bool:
        if os.geteuid() or shutil.which("ip") is None or "NODES_ON_LOOPBACK" in os.environ:
            return False
        one, two = (f"c{self.mark[:6]}{end}" for end in "ab")
        steps = [
            *(f"netns add {self._name(node)}" for node in (0, 1)),
            f"link add {one} netns {self._name(0)} type veth peer name {two} netns {self._name(1)}",
        ]
        for node, link in enumerate((one, two)):
            steps += [f"-n {self._name(node)} addr add 10.77.0.{node + 1}/24 dev {link}"]
            steps += [f"-n {self._name(node)} link set {name} up" for name in (link, "lo")]
        for step in steps:
            if subprocess.run(["ip", *step.split()], capture_output=True).returncode:
                for node in (0, 1):
                    subprocess.run(["ip", "netns", "del", self._name(node)], capture_output=True)
                return False
        return True


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""


def _command(pid: int) -> bytes:
    return _read(Path(f"/proc/{pid}/cmdline"))
