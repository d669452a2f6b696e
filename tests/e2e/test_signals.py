"""Ctrl-C and SIGTERM: the round is finished and saved, the directory says so, and resuming gives the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import commandline
import pytest

from conftest import few
from coterie.training import status

WORDS = (
    *("data.partition.clients=6", "method.name=wecfl", "method.k=2", "local.epochs=1", "local.momentum=0.9"),
    *("local.keep_optimizer=true", "rounds=6", "checkpoint_every=5", "participation=0.5"),
)
# The signal comes in the third round: to the process alone, or to its group, as from a terminal or from systemd.
SIGNALLED = """
import os, sys
import coterie.training.loop as loop
from coterie.tools.cli.main import main
number, whom, times = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
real = loop.do_round
def do_round(run, state, sampler, done, *more):
    if done == 2:
        for _ in range(times):
            os.killpg(0, number) if whom == "group" else os.kill(os.getpid(), number)
    return real(run, state, sampler, done, *more)
loop.do_round = do_round
sys.argv = ["coterie", "run", *sys.argv[4:]]
main()
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> commandline.Shell:
    return commandline.Shell(tmp_path, monkeypatch, capsys)


def signalled(run: Path, number: int, engine: str, whom: str = "process", times: int = 1) -> commandline.Said:
    words = [*WORDS, f"engine.name={engine}", *([] if engine == "sequential" else ["engine.workers=2"])]
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(number), whom, str(times), *words, "--out", str(run)],
        env=commandline.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
    )
    return commandline.Said(done.returncode, done.stdout, done.stderr)


CASES = [
    (signal.SIGTERM, "workers", "group"),
    (signal.SIGTERM, "batched", "process"),
    (signal.SIGINT, "sequential", "group"),
    (signal.SIGINT, "batched", "group"),
]


@pytest.mark.parametrize("case", few(CASES, CASES[0]), ids=str)
def test_the_round_is_finished_and_saved(case: tuple[int, str, str], shell: commandline.Shell) -> None:
    number, engine, whom = case
    run = shell.cwd / "run"
    said = signalled(run, number, engine, whom)
    assert said.code == 128 + number, said.err
    assert "stopping after this round" in said.err
    assert f"go on with: coterie run --resume {run}" in said.err
    assert "Traceback" not in said.err
    assert [line["round"] for line in commandline.log(run)] == [1, 2, 3]
    assert [file.name for file in commandline.checkpoints(run)] == ["round-000003.safetensors"]
    assert status.read(run) == status.RunState("stopped", "interrupted")
    assert shell("run", "--resume", run).code == 0
    words = [*WORDS, f"engine.name={engine}", *([] if engine == "sequential" else ["engine.workers=2"])]
    assert shell("run", *words, "--out", "whole").code == 0
    commandline.assert_same_run(run, shell.cwd / "whole")


def test_a_second_signal_ends_at_once(shell: commandline.Shell) -> None:
    run = shell.cwd / "run"
    said = signalled(run, signal.SIGTERM, "sequential", times=2)
    assert said.code == 143, said.err
    assert [line["round"] for line in commandline.log(run)] == [1, 2]
    assert not commandline.checkpoints(run)  # the first is due after round 5
    assert status.read(run) == status.RunState("stopped", "interrupted")
