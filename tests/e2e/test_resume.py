"""`kill -9` at any moment, then `coterie run --resume DIR`: the same bits as a run that was left alone."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commandline
import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

import coterie
from conftest import few
from coterie.methods.contract import Ask
from coterie.training.events import RoundDone

BASE = ("data.partition.clients=12", "rounds=12", "checkpoint_every=3", "seed=2", "participation=0.5")
KINDS = {
    # State (centers, labels) and memory (momentum), in two processes, with clients met late or never.
    "wecfl": (
        *("method.name=wecfl", "method.k=3", "local.momentum=0.9", "local.keep_optimizer=true", "local.lr=0.02"),
        *("engine.name=workers", "engine.workers=2", "dropout=0.2", "quorum=0.2"),
    ),
    "fedavg": ("method.name=fedavg",),
    "brief": ("method.name=fedavg", "data.partition.clients=6", "local.epochs=1", "rounds=6", "checkpoint_every=2"),
}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> commandline.Shell:
    return commandline.Shell(tmp_path, monkeypatch, capsys)


class Whole(dict[str, Path]):
    """Runs that were left alone, each begun when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, kind: str) -> Path:
        said = commandline.coterie("run", *BASE, *KINDS[kind], "--out", kind, cwd=self.folder)
        assert said.code == 0, said.err
        self[kind] = self.folder / kind
        return self[kind]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


def lines(run: Path) -> int:
    path = run / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ("wecfl", 4),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (("wecfl", -1), ("wecfl", 0), ("wecfl", 8), ("fedavg", 5))
        ),
    ],
)
def test_killed_and_resumed(kind: str, after: int, shell: commandline.Shell, whole: Whole) -> None:
    """-1: as soon as the directory is described; 0: in the first round; n: as soon as n rounds are logged."""
    run = shell.cwd / "run"
    command = [*commandline.COMMAND, "run", *BASE, *KINDS[kind], "--out", str(run)]
    with subprocess.Popen(command, env=commandline.ENVIRONMENT, start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if (run / "run.json").exists() and (after < 0 or lines(run) >= after):
                break
            time.sleep(0.002)
        process.kill()
    assert process.returncode == -signal.SIGKILL, "the run was over before it could be killed"
    assert not (run / "assignments.json").exists()
    resume = ("run", "--resume", run, "--json")
    said = commandline.coterie(*resume, cwd=shell.cwd) if after == 8 else shell(*resume)
    assert said.code == 0, said.err
    assert said.json["rounds"] == 12
    commandline.assert_same_run(run, whole[kind])


# Runs that kill themselves at an exact moment: just before, or just after, the n-th call of a function.
SUICIDES = """
import importlib, json, os, signal, sys
from coterie.tools.cli.main import main
import coterie.training.loop

def arm(where, name, number, when):
    owner = importlib.import_module(where.partition(":")[0])
    for part in filter(None, where.partition(":")[2].split(".")):
        owner = getattr(owner, part)
    real, calls = getattr(owner, name), 0

    def replacement(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, replacement)

for out, moment in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        arm(*moment)
        sys.argv = ["coterie", "run", *sys.argv[2:], "--out", out]
        main()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, moment
"""

FILES = "coterie.core.files", "replace_durably"
CHECKPOINT = "coterie.training.checkpoint", "replace_durably"
DESCRIPTION = (
    "coterie.training.run_directory:RunDirectory",
    "_write",
)  # serving.json, run.json, assignments.json, clients.json
LOG = "coterie.training.run_directory:RunDirectory", "listen"  # the start, then every round, then the end
SAVE = "coterie.training.run_directory:RunDirectory", "save"
MOMENTS = {
    "before the configuration is in place": (*FILES, 1, "before"),
    "with the configuration and nothing else": (*FILES, 1, "after"),
    "with a half-written description": (*FILES, 2, "before"),
    "before the first line": (*LOG, 2, "before"),
    "after the first line": (*LOG, 2, "after"),
    "before the second line, which a checkpoint goes with": (*LOG, 3, "before"),
    "after the second line, which a checkpoint goes with": (*LOG, 3, "after"),
    "before the second checkpoint": (*SAVE, 2, "before"),
    "after the second checkpoint": (*SAVE, 2, "after"),
    "with the second checkpoint written but not in place": (*CHECKPOINT, 2, "before"),
    "before the last line": (*LOG, 7, "before"),
    "after the last line": (*LOG, 7, "after"),
    "with all rounds done and nothing said of clients": (*LOG, 8, "before"),
    "with assignments and no clients": (*DESCRIPTION, 3, "after"),
    "with everything": (*LOG, 8, "after"),
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Path]:
    """What such runs have left behind, for the tests that were chosen."""
    folder = tmp_path_factory.mktemp("killed")
    chosen = [item.callspec.params.get("moment") for item in request.session.items if hasattr(item, "callspec")]
    runs = {moment: folder / f"run-{i}" for i, moment in enumerate(MOMENTS) if moment in chosen}
    moments = json.dumps({str(run): MOMENTS[moment] for moment, run in runs.items()})
    done = subprocess.run(
        [sys.executable, "-c", SUICIDES, moments, *BASE, *KINDS["brief"]],
        env=commandline.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return runs


@pytest.mark.parametrize(
    "moment",
    few(
        MOMENTS,
        "with the second checkpoint written but not in place",
    ),
)
def test_killed_at_an_exact_moment(
    moment: str, shell: commandline.Shell, killed: dict[str, Path], whole: Whole
) -> None:
    run = killed[moment]
    # Without the configuration there is nothing to go on from, not even what was asked: the same command must do.
    again = ["--resume"] if (run / "config.yaml").exists() else [*BASE, *KINDS["brief"], "--out"]
    said = shell("run", *again, run, "--json")
    assert said.code == 0, said.err
    assert said.json["rounds"] == 6
    commandline.assert_same_run(run, whole["brief"])
    assert not list(run.rglob("*.part")), "half-written files are still there"


# ----------------------------------------------------------------------------------------- other ways to go on


@pytest.mark.parametrize("kind", few(["wecfl", "fedavg"], "wecfl"))
def test_more_rounds_are_a_longer_run(kind: str, shell: commandline.Shell, whole: Whole) -> None:
    assert shell("run", *BASE, *KINDS[kind], "rounds=5", "--out", "run").code == 0
    said = shell("run", "--resume", "run", "rounds=12", "--json")
    assert said.code == 0, said.err
    assert said.json["rounds"] == 12
    commandline.assert_same_run(shell.cwd / "run", whole[kind])
    # The configuration in the directory is that of the run in the directory.
    assert yaml.safe_load((shell.cwd / "run" / "config.yaml").read_text())["rounds"] == 12
    assert shell("run", "--resume", "run", "--json").json["rounds"] == 12


@pytest.mark.parametrize("kind", few(["wecfl", "fedavg"], "wecfl"))
def test_a_finished_run_stays_as_it_is(kind: str, shell: commandline.Shell, whole: Whole) -> None:
    run = shell.cwd / "run"
    shutil.copytree(whole[kind], run)
    first = shell("run", "--resume", run, "--json")
    second = shell("run", "--resume", run, "--json")
    assert first.code == 0, first.err
    assert {**first.json, "seconds": 0} == {**second.json, "seconds": 0}
    assert first.json["accuracy"] == commandline.log(run)[-1]["accuracy"]
    commandline.assert_same_run(run, whole[kind])


@pytest.mark.exhaustive
def test_twice_interrupted(shell: commandline.Shell, whole: Whole) -> None:
    assert shell("run", *BASE, *KINDS["wecfl"], "rounds=2", "--out", "run").code == 0
    for rounds in (7, 12):
        assert shell("run", "--resume", "run", f"rounds={rounds}").code == 0
    commandline.assert_same_run(shell.cwd / "run", whole["wecfl"])


@pytest.mark.exhaustive
def test_resumed_with_another_engine(shell: commandline.Shell, whole: Whole) -> None:
    assert shell("run", *BASE, *KINDS["wecfl"], "rounds=5", "--out", "run").code == 0
    assert shell("run", "--resume", "run", "rounds=12", "engine.workers=1").code == 0
    commandline.assert_same_run(shell.cwd / "run", whole["wecfl"])


def test_rubbish_of_a_crash_is_survived(shell: commandline.Shell, whole: Whole) -> None:
    run = shell.cwd / "run"
    assert shell("run", *BASE, *KINDS["wecfl"], "rounds=6", "--out", run).code == 0
    (run / "checkpoints" / "round-000009.safetensors.part").write_bytes(b"half of a checkpoi")
    (run / "rounds.jsonl.part").write_bytes(b"{")
    (run / "assignments.json.part").write_bytes(b"{")
    whole_line = (run / "rounds.jsonl").read_text().splitlines()[-1].replace('"round": 6', '"round": 7')
    with (run / "rounds.jsonl").open("a") as log:
        log.write(whole_line + "\n" + whole_line[:37])  # a round beyond the checkpoint, and a line cut short
    assert shell("run", "--resume", run, "rounds=12").code == 0
    commandline.assert_same_run(run, whole["wecfl"])
    assert not list((run / "checkpoints").glob("*.part"))


def test_a_damaged_last_checkpoint_is_passed_over(shell: commandline.Shell, whole: Whole) -> None:
    run = shell.cwd / "run"
    shutil.copytree(whole["wecfl"], run)
    last = commandline.checkpoints(run)[-1]
    last.write_bytes(last.read_bytes()[:-100])
    said = shell("run", "--resume", run)
    assert said.code == 0
    assert f"{last.name}: damaged; the run continues after round 9" in " ".join(said.err.split())
    commandline.assert_same_run(run, whole["wecfl"])


@pytest.mark.parametrize("kind", few(["wecfl", "fedavg"], "wecfl"))
def test_two_checkpoints_are_kept(kind: str, whole: Whole) -> None:
    names = [p.name for p in sorted((whole[kind] / "checkpoints").iterdir())]
    assert names == ["round-000009.safetensors", "round-000012.safetensors", "sketch-before.safetensors"]


def test_a_quorum_that_stopped_a_run_can_be_lowered(shell: commandline.Shell) -> None:
    """The message says that a lower quorum lets the run go on; so it must."""
    words = [*BASE, "method.name=fedavg", "dropout=0.6", "retries=0", "quorum=0.6", "rounds=20", "checkpoint_every=1"]
    stopped = shell("run", *words, "--out", "run")
    assert stopped.code == 2
    assert "lower quorum" in stopped.err
    said = shell("run", "--resume", "run", "quorum=0", "--json")
    assert said.code == 0, said.err
    assert said.json["rounds"] == 20


# ------------------------------------------------------------------------------------------------ the Python API


@dataclass(frozen=True)
class Views:
    """A state whose tensors share memory, as slices do."""

    both: Tensor
    first: Tensor


@dataclass(frozen=True)
class Sliced:
    """A method that keeps a model and a view of it."""

    def init(self, model: coterie.Model, roster: coterie.Roster, rng: np.random.Generator) -> Views:
        w = torch.stack([model.init(rng), model.init(rng)])
        return Views(w, w[0])

    def round(self, state: Views, cohort: coterie.Cohort, ask: Ask) -> Views:
        reply = ask(coterie.Fit(coterie.All(state.first), local=coterie.Local()))
        w = torch.stack([coterie.mean(reply.theta, reply.n.double(), empty=state.first), state.first])
        return Views(w, w[0])

    def predictor(self, state: Views) -> coterie.Evaluate:
        return coterie.Evaluate((coterie.All(state.first),))


def federation() -> coterie.Federation:
    rng = np.random.default_rng(0)
    return coterie.Federation.from_arrays(
        [(rng.normal(size=(12, 3)), rng.integers(0, 2, 12)) for _ in range(4)], standardise=False, standardise_y=False
    )


@pytest.mark.parametrize("method", [coterie.FedAvg(), coterie.WeCFL(k=2), coterie.IFCA(k=2), Sliced()], ids=repr)
def test_resume_in_python(method: Any, tmp_path: Path) -> None:
    def run(rounds: int, out: Path, resume: bool = False) -> Any:
        return coterie.run(
            *(method, federation(), "linear"),
            rounds=rounds,
            participation=3,
            out=out,
            resume=resume,
            checkpoint_every=2,
        )

    expected = run(7, tmp_path / "whole")
    run(3, tmp_path / "parts")
    found = run(7, tmp_path / "parts", resume=True)
    assert [event.round for event in found.history] == [4, 5, 6, 7]
    np.testing.assert_array_equal(found.assignments, expected.assignments)
    commandline.assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_run_that_lost_its_quorum_goes_on_with_a_lower_one(shell: commandline.Shell) -> None:
    words = ("data.partition.clients=8", "rounds=30", "local.epochs=1", "checkpoint_every=1", "method.name=fedavg")
    said = shell("run", *words, "dropout=0.4", "retries=0", "--out", "run")
    assert said.code == 2
    assert "With a lower quorum the run continues" in said.err
    done = lines(shell.cwd / "run")
    assert 0 < done < 30
    said = shell("run", "--resume", "run", "quorum=0", "rounds=12", "--json")
    assert said.code == 0, said.err
    assert lines(shell.cwd / "run") == 12


def test_what_was_missing_is_told_of_the_whole_run(shell: commandline.Shell) -> None:
    """A resumed run's last lines are about the run, as its directory is, not about the rounds since it went on."""
    words = ("data.partition.clients=8", "rounds=4", "local.epochs=1", "method.name=fedavg", "dropout=0.4", "quorum=0")
    assert shell("run", *words, "--out", "run").code == 0
    said = shell("run", "--resume", "run", "--more", "2")
    events = [json.loads(line) for line in (shell.cwd / "run" / "rounds.jsonl").read_text().splitlines()]
    lost = [len(event["missing"]) for event in events]
    assert sum(lost[:4]) > 0
    flat = " ".join(said.out.split())
    assert f"{sum(lost)} answers were missing over {sum(map(bool, lost))} rounds" in flat


def test_without_checkpoints_it_says_that_it_begins_anew(shell: commandline.Shell, whole: Whole) -> None:
    shutil.copytree(whole["brief"], shell.cwd / "run")
    shutil.rmtree(shell.cwd / "run" / "checkpoints")
    said = shell("run", "--resume", "run")
    assert said.code == 0
    assert "has no checkpoint to resume from, so it starts from the beginning" in said.out + said.err
    assert lines(shell.cwd / "run") == lines(whole["brief"])


@pytest.mark.exhaustive
def test_two_processes_do_not_work_on_the_same_run(shell: commandline.Shell, whole: Whole) -> None:
    run = shell.cwd / "run"
    shutil.copytree(whole["brief"], run)
    said: list[commandline.Said] = []

    def meanwhile(event: object) -> None:
        if isinstance(event, RoundDone) and not said:
            said.append(commandline.coterie("run", "--resume", run, cwd=shell.cwd))

    from coterie.training.config import read
    from coterie.training.execute import execute

    config = read(None, ["rounds=7"], base=yaml.safe_load((run / "config.yaml").read_text()))
    execute(config, run, resume=True, listeners=[meanwhile])
    assert said[0].code == 2
    assert f"{run}: another process is working on this run" in said[0].err
    assert lines(run) == 7
    assert not (run / ".lock").exists()
    assert commandline.coterie("run", "--resume", run, cwd=shell.cwd).code == 0
