"""Code that merely lies about is not run: not from the working directory, not because a run directory names it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import commandline
import pytest
import yaml

import coterie
from conftest import raises
from coterie.core.processes import import_from_here_last
from coterie.training.trust import named_code

TRAP = "import pathlib; pathlib.Path({place!r}).write_text('ran'); raise SystemExit(7)\n"
TRAPS = ("torch", "numpy", "csv", "pickle", "socket", "struct", "yaml", "filelock", "safetensors")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> commandline.Shell:
    """The command line, in a directory of its own."""
    return commandline.Shell(tmp_path, monkeypatch, capsys)


@pytest.mark.exhaustive
def test_modules_of_the_working_directory_do_not_stand_in_for_installed_ones(tmp_path: Path) -> None:
    here, script = tmp_path / "here", tmp_path / "coterie"
    here.mkdir()
    for name in TRAPS:
        (here / f"{name}.py").write_text(TRAP.format(place=str(tmp_path / f"{name}.ran")))
    # As the installed command is: a script that lies elsewhere.
    script.write_text("from coterie.tools.cli.main import main\n\nif __name__ == '__main__':\n    main()\n")
    words = [*commandline.QUICK, "rounds=1", "engine.name=workers", "engine.workers=2", "--out", "run", "--json"]
    done = subprocess.run(
        [sys.executable, script, "run", *words],
        cwd=here,
        env=commandline.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not list(tmp_path.glob("*.ran"))
    assert done.returncode == 0, done.stderr


def test_the_working_directory_is_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/somewhere"])
    import_from_here_last()
    if not sys.flags.safe_path:
        assert sys.path == ["/somewhere", str(tmp_path)]
    monkeypatch.setattr(sys, "path", ["/somewhere"])
    import_from_here_last()
    import_from_here_last()
    assert sys.path == ["/somewhere", str(tmp_path)]


def received(shell: commandline.Shell, key: str, value: dict[str, object]) -> Path:
    """A run whose configuration was changed by whoever sent it."""
    if not (shell.cwd / "run").exists():
        assert shell("run", *commandline.QUICK, "--out", "run", "--json").code == 0
    tree = yaml.safe_load((shell.cwd / "run" / "config.yaml").read_text())
    tree[key] = value
    (shell.cwd / "run" / "config.yaml").write_text(yaml.safe_dump(tree))
    return shell.cwd / "run"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data", {"name": "os:system", "command": "touch ran"}),
        ("data", {"name": "digits", "partition": {"name": "hybrid", "clients": 8, "other": "trap:Net"}}),
        ("data", {"name": "digits", "partition": {"name": "subsample", "partition": {"name": "trap:Net"}}}),
        ("model", {"name": "trap:Net"}),
        ("model", {"name": "linear", "loss": "trap:Net"}),
        ("method", {"name": "trap:Method"}),
        ("method", {"name": "cam", "base": {"name": "trap:Method"}}),
        ("attack", {"kind": "trap:Net"}),
    ],
)
def test_a_received_run_directory_runs_no_code_of_its_own(
    shell: commandline.Shell, key: str, value: dict[str, object]
) -> None:
    shell.module("import pathlib\npathlib.Path('ran').touch()\n", "trap")
    path = received(shell, key, value)
    said = shell("run", "--resume", path)
    assert said.code == 2
    name = next(name for _, name in named_code({key: value}))
    assert f"--trust {name}" in said.err
    for words in (
        ("clusters", path, "--client", "0"),
        ("export", path, "--out", "exported"),
        ("clusters", path),
        ("report", path),
    ):
        shell(*words)
    with suppress(coterie.CoterieError):
        coterie.load(path).explain(0)
    with suppress(coterie.CoterieError):
        _ = coterie.load(path).federation
    if key in ("method", "model"):  # the rest nothing but training needs
        with raises("trust-needed", match=r"coterie.load\(dir, trust="):
            coterie.load(path)
    assert not (shell.cwd / "ran").exists()
    # Told to trust it, the command goes further (and fails, since that is no part of a run).
    assert f"--trust {name}" not in shell("run", "--resume", path, "--trust", name).err
    assert (shell.cwd / "ran").exists()
