"""How a run stands: what its directory says while it runs, and when it ends, fails, is interrupted or is killed."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import coterie
from conftest import linear, make_federation, raises
from coterie.core.errors import CoterieError, StoppedError
from coterie.tools.report.record import FRESH, read_run, read_summary
from coterie.training import status
from coterie.training.events import Event, RoundDone


def run(path: Path, error: BaseException | None = None, **more: Any) -> None:
    """Two rounds on four clients; after the first, this error is raised."""

    def listen(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 1:
            assert status.read(path) == status.RunState("running", alive=True)
            assert read_run(path, fresh=0).status == "running"  # whatever the clock says
            if error is not None:
                raise error

    coterie.run(coterie.FedAvg(), make_federation(), linear(), rounds=2, out=path, listeners=[listen], **more)


def test_a_run_that_came_to_its_end_is_done(tmp_path: Path) -> None:
    run(tmp_path / "a")
    assert status.read(tmp_path / "a") == status.RunState("done")
    assert read_run(tmp_path / "a").status == "done"


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (ValueError("no such thing"), "failed", "ValueError: no such thing"),
        (CoterieError("lr: lower it"), "failed", "lr: lower it"),
        (MemoryError(), "failed", "MemoryError"),
        (KeyboardInterrupt(), "stopped", "interrupted"),
        (StoppedError("pruned"), "stopped", "pruned"),
    ],
)
def test_why_a_run_ended_early(error: BaseException, state: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        run(tmp_path / "a", error)
    for record in (read_run(tmp_path / "a"), read_summary(tmp_path / "a")):
        assert (record.status, record.problem) == (state, reason)
    run(tmp_path / "a", resume=True)
    assert (read_run(tmp_path / "a").status, read_run(tmp_path / "a").problem) == ("done", None)


def test_a_mistake_in_resuming_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run(tmp_path / "a")
    with raises("checkpoint-mismatch"):
        run(tmp_path / "a", resume=True, seed=5)
    assert read_run(tmp_path / "a").status == "done"


def test_a_killed_run_has_failed_at_once(tmp_path: Path) -> None:
    script = f"""
        import os, signal
        from pathlib import Path
        from coterie.training import status
        from filelock import FileLock
        path = Path({str(tmp_path)!r})
        lock = FileLock(path / status.LOCK)
        lock.acquire()
        (path / "config.yaml").write_text("rounds: 3")
        status.write(path, "running")
        assert status.read(path).alive
        os.kill(os.getpid(), signal.SIGKILL)
    """
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert died.returncode == -9
    process = json.loads((tmp_path / status.FILE).read_text())["process"]
    record = read_run(tmp_path)
    assert record.status == "failed"
    assert f"its process ({process}) ended without a message" in str(record.problem)
    assert status.left_running(tmp_path)


def test_of_another_machine_the_clock_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text("rounds: 3")
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    status.write(tmp_path, "running")
    monkeypatch.undo()
    assert status.read(tmp_path) == status.RunState("running")
    assert read_run(tmp_path, fresh=FRESH).status == "running"
    assert read_run(tmp_path, fresh=-1).status == "stopped"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"state": "flying"}', '{"state": ["done"]}', "[" * 100_000])
def test_a_damaged_status_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / status.FILE).write_text(text)
    assert status.read(tmp_path) is None


def test_a_look_at_the_lock_does_not_keep_a_run_from_beginning(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with pytest.raises(ValueError, match="once"):
        run(tmp_path / "a", ValueError("once"))
    (tmp_path / "a" / status.LOCK).touch()
    with (tmp_path / "a" / status.LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert status.held(tmp_path / "a") is False  # two who look do not take each other for a run
        with raises("run-locked"):
            run(tmp_path / "a", resume=True)
    run(tmp_path / "a", resume=True)
