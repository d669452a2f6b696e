"""What the machine refuses is one clear error on the command line; what is a defect stays a traceback."""

from __future__ import annotations

import ctypes
import errno
import sys
from typing import Any

import pytest
import torch

from coterie.core.errors import CoterieError, of_the_machine
from coterie.tools.cli import main as cli


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (torch.OutOfMemoryError("Failed to allocate a Tensor object"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "memory"),
        (SystemError("error return without exception set"), "memory"),
        (SystemError("<built-in function zip> returned NULL without setting an exception"), "memory"),
        (SystemError("<method __instancecheck__> returned a result with an exception set"), "memory"),
        (ctypes.ArgumentError("argument 1: MemoryError: "), "memory"),
        (OSError(errno.EIO, "Input/output error", "/data/a.csv"), "disk-failed"),
        (PermissionError(errno.EACCES, "Permission denied", "b"), "disk-failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_what_the_machine_refuses_is_said(
    error: Exception, code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = of_the_machine(error)
    assert isinstance(found, CoterieError)
    assert found.code == code
    assert said_by(error, monkeypatch, capsys) == f"error: {found}\n"


@pytest.mark.parametrize(
    "error",
    [
        *(KeyError("k"), RuntimeError("shapes differ"), SystemError("bad opcode"), BrokenPipeError(32, "pipe")),
        *(ctypes.ArgumentError("argument 1: TypeError: wrong type"), OSError()),
    ],
)
def test_a_defect_is_not_hidden(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_the_machine(error) is None
    monkeypatch.setattr(cli, "app", refuse(error))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(type(error)):
        cli.main()


def refuse(error: Exception) -> Any:
    def app(**_: Any) -> None:
        raise error

    return app


def said_by(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(cli, "app", refuse(error))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    return capsys.readouterr().err
