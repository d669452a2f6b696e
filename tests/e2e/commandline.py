"""The command line as its users meet it: as a process of its own or, where many cases are tried, in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from torch import Tensor

COMMAND = [sys.executable, "-m", "coterie.tools.cli.main"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::ResourceWarning"}

# A run of a second: 8 clients, two rounds.
QUICK = ("data.partition.clients=8", "local.epochs=1", "rounds=2")


@dataclass(frozen=True)
class Said:
    """What the command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


def coterie(*words: str | Path, cwd: Path) -> Said:
    """Run the real command."""
    done = subprocess.run(
        [*COMMAND, *map(str, words)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    return Said(done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True)
class Shell:
    """The same command in this process: no second to wait for imports. An error it does not handle is raised."""

    cwd: Path
    patch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __call__(self, *words: str | Path) -> Said:
        from coterie.tools.cli.main import main

        self.patch.chdir(self.cwd)
        self.patch.setattr(sys, "path", list(sys.path))
        self.patch.setattr(sys, "argv", ["coterie", *map(str, words)])
        self.capture.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        said = self.capture.readouterr()
        return Said(end.value.code if isinstance(end.value.code, int) else 0, said.out, said.err)

    def module(self, text: str, name: str) -> None:
        """A user's own module where the command is run."""
        (self.cwd / f"{name}.py").write_text(text, encoding="utf-8")
        self.patch.delitem(sys.modules, name, raising=False)


# -------------------------------------------------------------------------------------------- run directories


def checkpoints(run: Path) -> list[Path]:
    """Oldest first."""
    return sorted((run / "checkpoints").glob("round-*.safetensors"))


def last_tensors(run: Path) -> dict[str, Tensor]:
    """State and memory of the last checkpoint."""
    return safetensors.torch.load_file(checkpoints(run)[-1])


def log(run: Path) -> list[dict[str, Any]]:
    """The rounds, without the one thing that time changes."""
    lines = (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in strictly(line).items() if k not in ("seconds", "client_seconds")} for line in lines]


def strictly(text: str) -> Any:
    """JSON as its standard has it: NaN and Infinity are not part of it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def assert_same_run(one: Path, other: Path) -> None:
    """Both ended in the same bits."""
    assert checkpoints(one)[-1].name == checkpoints(other)[-1].name
    a, b = last_tensors(one), last_tensors(other)
    assert set(a) == set(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].numpy().tobytes() == b[name].numpy().tobytes(), name
    assert log(one) == log(other)
    for name in ("assignments.json", "clients.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
