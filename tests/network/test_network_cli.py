"""The commands' mistakes, and who may speak to a SuperLink."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie.core.errors import CoterieError
from coterie.tools.cli.main import app


def failed(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert isinstance(result.exception, CoterieError), result.output
    return str(result.exception)


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.network.flower.internals.require_flower", lambda _: None)


PRIVATE = ("privacy={epsilon: 8, evaluation: trusted}",)
CLIENT = ("client", "--server", "127.0.0.1:8000", "--data", "a.npz")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("server",), "--certs DIR"),
        (("server", "--certs", "c", "--insecure"), "not both"),
        (("server", "--insecure", "dropout=0.5"), "is for simulations"),
        (("server", "--insecure", "--resume", "nowhere"), "no run to resume"),
        (("server", "--insecure", "method.name=wecf"), "Did you mean 'wecfl'"),
        (("server", "--insecure", "network.deadlin=3"), "deadline"),
        (("server", "--certs", "nowhere", "--out", "x"), "coterie certs"),
        (("server", "--insecure", "method.name=ifca", "privacy.epsilon=8"), "privacy.evaluation=trusted"),
        (("server", "--insecure", "method.name=ifca", *PRIVATE, "checkpoint_every=5"), "checkpoint_every at 1"),
        (("server", "--insecure", "method.name=cfl", *PRIVATE), "CFL is refused"),
        (("server", "--insecure", "method.name=ifca", "local.lr=auto", *PRIVATE), "local.lr=auto is refused"),
        (CLIENT, "--key DIR"),
        ((*CLIENT, "--insecure"), "--name"),
        ((*CLIENT, "--insecure", "--name", "a b"), "is not a name"),
        ((*CLIENT, "--insecure", "--name", "a"), "a.npz"),
        (("client", "--server", "here", "--data", "a.npz", "--insecure", "--name", "a"), "HOST:PORT"),
        ((*CLIENT, "--key", "nowhere"), "nowhere"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    words: tuple[str, ...], said: str, flower: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if words[-1] == "x" or said == "a.npz":  # found out where Flower is needed
        pytest.importorskip("flwr")
    assert said in failed(*words)
    assert not list(tmp_path.glob("x*"))


@pytest.mark.parametrize("command", [("server", "--insecure"), (*CLIENT, "--insecure", "--name", "a")])
def test_without_flower_the_extra_is_named(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.network.flower.internals.find_spec", lambda _: None)
    assert "pip install 'coterie[flower]'" in failed(*command)


def test_the_command_line_does_not_import_flower() -> None:
    import subprocess

    code = (
        "import sys, coterie.tools.cli.main; assert not {'flwr', 'torch', 'ray'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
