"""Runs in processes of their own: cached, killed and gone on with, failing without stopping the others."""

from __future__ import annotations

import dataclasses
import io
import signal
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from filelock import FileLock

from conftest import raises
from coterie.core import processes
from coterie.core.errors import CoterieError
from coterie.core.processes import Failed, UnderWay
from coterie.training.execute import execute
from coterie.training.run_directory import RunDirectory, read_history
from papers import campaign as room
from papers.campaign import Job, Progress, campaign, missing
from papers.cell import Outcome, Run, Tree
from papers.results import Results, configured
from papers.work import carry_out, find, running, sources

CONFIG: Tree = {
    "data": {"name": "digits", "partition": {"name": "rotated", "clients": 6}},
    "model": {"name": "linear"},
    "method": {"name": "wecfl", "k": 2},
    "local": {"epochs": 1, "batch": 8, "lr": 0.1},
    "rounds": 4,
    "participation": 3,
    "checkpoint_every": 2,
}
TINY = Run("tiny/wecfl", CONFIG, "clusters")
REAL = "quick/rotated/fedavg"  # a process of its own knows the real tables only: this one takes seconds


class CrashError(Exception):
    pass


def untimed(outcome: Outcome | None) -> Outcome:
    assert outcome is not None
    return dataclasses.replace(outcome, seconds=0.0, processor=None)


def left_over(results: Results) -> list[Path]:
    """What lies below the results and is no outcome."""
    return [path for path in results.root.rglob("*") if path.suffix not in (".jsonl", ".lock")]


# ------------------------------------------------------------------------------------------- one run, in this process


def test_two_are_never_at_the_same_run(tmp_path: Path) -> None:
    results = Results(tmp_path)
    lock = running(tmp_path, TINY, 0).with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    with FileLock(lock), raises("run-locked"):
        carry_out(TINY, 0, results, {})
    assert results.load(TINY, 0) is None
    assert carry_out(TINY, 0, results, {}).is_file()  # once the other has let go


def test_carried_out(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    place = carry_out(TINY, 3, results, {})
    assert place == tmp_path / "results" / "tiny.jsonl"
    found = results.load(TINY, 3)
    assert found is not None
    result = execute(configured(TINY, 3), tmp_path / "run")
    history = read_history(tmp_path / "run", 4)
    assert found.curve["round"] == [1, 2, 3, 4]
    wanted = [event.summary.accuracy for event in history if event.summary is not None]
    assert found.curve["accuracy"] == pytest.approx(wanted, rel=1e-5)
    assert found.curve["discrepancy"] == pytest.approx([e.discrepancy for e in history], rel=1e-5)
    assert set(found.probe) == {"clusters", "each"}
    assert len(found.probe["each"]) == result.summary.clusters
    assert found.seconds > 0
    assert found.processor is not None
    assert found.processor > 0
    assert found.data_from is None
    assert left_over(results) == []


def stop_after(patch: pytest.MonkeyPatch, saved: int) -> None:
    """A crash right after the checkpoint of that round."""
    real = RunDirectory.save

    def save(self: RunDirectory, state: object, memory: Any, round: int, evaluated: Any) -> None:
        real(self, state, memory, round, evaluated)
        if round == saved:
            raise CrashError

    patch.setattr(RunDirectory, "save", save)


def interrupted(results: Results, monkeypatch: pytest.MonkeyPatch, run: Run = TINY) -> Path:
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(CrashError):
            carry_out(run, 0, results, {})
    place = running(results.root, run, 0)
    assert len(list((place / "checkpoints").iterdir())) == 1
    return place


def test_it_goes_on_from_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Results(tmp_path / "whole"), Results(tmp_path / "parts")
    carry_out(TINY, 0, whole, {})
    interrupted(parts, monkeypatch)
    assert parts.load(TINY, 0) is None
    rounds: list[int] = []
    real = RunDirectory.listen

    def listen(self: RunDirectory, event: Any) -> None:
        if hasattr(event, "round"):
            rounds.append(event.round)
        real(self, event)

    monkeypatch.setattr(RunDirectory, "listen", listen)
    carry_out(TINY, 0, parts, {})
    assert rounds == [3, 4]
    resumed = parts.load(TINY, 0)
    assert untimed(resumed) == untimed(whole.load(TINY, 0))
    assert resumed is not None
    assert resumed.processor is None  # a part of it went with the process that crashed
    assert left_over(parts) == []


def test_a_crash_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = Results(tmp_path / "whole"), Results(tmp_path / "parts")
    carry_out(TINY, 0, whole, {})

    def crash(*_: Any) -> Any:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr("papers.work.look", crash)
        with pytest.raises(CrashError):
            carry_out(TINY, 0, parts, {})
    carry_out(TINY, 0, parts, {})
    assert untimed(parts.load(TINY, 0)) == untimed(whole.load(TINY, 0))


@pytest.mark.parametrize(
    "keys", [{"local": {"epochs": 1, "batch": 8, "lr": 0.05}}, {"rounds": 1}, {"method": {"name": "ifca", "k": 2}}]
)
def test_what_was_begun_with_another_configuration_is_begun_anew(
    keys: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = Results(tmp_path / "whole"), Results(tmp_path / "parts")
    other = Run(TINY.name, CONFIG | keys, "clusters")
    carry_out(other, 0, whole, {})
    interrupted(parts, monkeypatch)
    carry_out(other, 0, parts, {})
    assert untimed(parts.load(other, 0)) == untimed(whole.load(other, 0))


def test_an_error_of_another_kind_leaves_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of work, and then the data cannot be fetched for a moment."""
    results = Results(tmp_path)
    place = interrupted(results, monkeypatch)

    def offline(_: Any) -> Any:
        raise CoterieError("digits: cannot be fetched")

    with monkeypatch.context() as patch:
        for where in ("coterie.training.execute.build", "papers.work.build"):
            patch.setattr(where, offline, raising=False)
        with raises("unspecified"):
            carry_out(TINY, 0, results, {})
    assert len(list((place / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize("where", ["safetensors.torch.save_file", "coterie.client.contract.Memory.restore"])
def test_a_disk_that_is_full_leaves_what_was_done(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a checkpoint finds no room, or what clients keep when it is read again."""
    results = Results(tmp_path)
    place = interrupted(results, monkeypatch)

    def full(*_: Any, **__: Any) -> Any:
        raise (OSError if where.startswith("safetensors") else CoterieError)("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(where, full)
        with pytest.raises(CoterieError, match="No space left"):
            carry_out(TINY, 0, results, {})
    assert len(list((place / "checkpoints").glob("round-*"))) == 1


def test_data_from_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    x = (rng.normal(size=(120, 4)) + y[:, None]).astype(np.float32)
    np.savez(tmp_path / "mine.npz", x=x, y=y, owner=np.arange(120) // 20)
    natural = CONFIG | {"data": {"name": "uci-har", "partition": {"name": "natural", "test": 0.2}}}
    run = Run("tiny/har", natural | {"method": {"name": "fedavg"}, "participation": 1.0})
    results = Results(tmp_path / "results")
    carry_out(run, 0, results, sources([f"uci-har={tmp_path / 'mine.npz'},client=owner"]))
    found = results.load(run, 0)
    assert found is not None
    assert found.data_from == "mine.npz"
    assert found.curve["sizes"][-1] == [6]
    assert str(tmp_path) not in results.place(run.name).read_text()  # no path of this machine


# --------------------------------------------------------------------------------------------------------- words


def test_sources(tmp_path: Path) -> None:
    file = tmp_path / "har.npz"
    file.write_bytes(b"")
    assert sources([]) == {}
    found = sources([f"uci-har={file},client=subject,test=t"])
    assert found == {"uci-har": {"name": "npz", "path": str(file), "client": "subject", "test": "t"}}
    for name, source in found.items():
        assert sources([room._word(name, source)]) == found
    for word in ("uci-har", f"uci-har={tmp_path / 'none.npz'}", f"uci-har={file},client", "", f"{file}"):
        with raises("option-invalid", match=r"--data .* expected NAME=FILE\.npz"):
            sources([word])


def test_what_is_missing_seed_by_seed(tmp_path: Path) -> None:
    results = Results(tmp_path)
    a, b = TINY, Run("tiny/fedavg", CONFIG | {"method": {"name": "fedavg"}})
    assert missing([a, b], [0, 1], results) == [Job(a, 0), Job(b, 0), Job(a, 1), Job(b, 1)]
    carry_out(a, 1, results, {})
    assert missing([a, b], [0, 1], results) == [Job(a, 0), Job(b, 0), Job(b, 1)]


# -------------------------------------------------------------------------------------- many, with processes of paper


class Pretended:
    """A process that is over after so many looks."""

    def __init__(self, looks: int, code: int, note: Callable[[str], None]) -> None:
        self.looks, self.code, self.note = looks, code, note
        self.returncode: int | None = None
        self.stdin = None

    def poll(self) -> int | None:
        self.looks -= 1
        if self.looks <= 0 and self.returncode is None:
            self.returncode = self.code
            self.note("end")
        return self.returncode

    def terminate(self) -> None:
        self.note("terminated")
        self.returncode = -15

    def wait(self, timeout: float | None = None) -> int:
        self.note("waited")
        return -15


def pretend(
    monkeypatch: pytest.MonkeyPatch, ends: Sequence[tuple[int, int, bytes]]
) -> tuple[list[Job], list[str], list[io.BytesIO]]:
    """Jobs that end so, in the order in which they are begun; what happens to them, and where they complain."""
    happened: list[str] = []
    complaints: list[io.BytesIO] = []
    queue = list(ends)

    def begin(job: Job, results: Results, data: Any) -> UnderWay[Job]:
        looks, code, words = queue.pop(0)
        happened.append("begin")
        complaints.append(io.BytesIO(words))
        process: Any = Pretended(looks, code, happened.append)
        return UnderWay(job, process, complaints[-1])

    monkeypatch.setattr(room, "_begin", begin)
    monkeypatch.setattr(processes, "PAUSE", 0.0)
    return [Job(TINY, seed) for seed in range(len(ends))], happened, complaints


def test_as_many_at_once_as_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, happened, complaints = pretend(monkeypatch, [(3, 0, b""), (1, 0, b""), (2, 0, b""), (1, 0, b""), (5, 0, b"")])
    told: list[Progress] = []
    assert campaign(jobs, Results(tmp_path), {}, at_once=2, tell=told.append) == []
    level = np.cumsum([1 if what == "begin" else -1 for what in happened])
    assert level.max() == 2
    assert level[-1] == 0
    assert happened.count("begin") == 5
    assert told[-1] == Progress(5, 5, (), ((jobs[4], None),))
    assert sorted(job.seed for so_far in told for job, _ in so_far.ended) == [0, 1, 2, 3, 4]
    assert all(a.done <= b.done for a, b in pairwise(told))
    assert all(file.closed for file in complaints)


def test_a_failure_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [(1, 2, b"Traceback\nerror: no such data\n"), (2, 0, b"a warning\n"), (1, -9, b""), (1, 1, b"\xff odd\n")]
    jobs, happened, _ = pretend(monkeypatch, ends)
    failed = campaign(jobs, Results(tmp_path), {}, at_once=1)
    assert failed[0] == Failed(jobs[0], "no such data")
    assert failed[1].job == jobs[2]
    assert "signal 9" in failed[1].why
    assert failed[2].job == jobs[3]
    assert "odd" in failed[2].why
    assert happened.count("begin") == 4


def test_interrupted_it_takes_its_processes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, happened, complaints = pretend(monkeypatch, [(99, 0, b"")] * 3)

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        campaign(jobs, Results(tmp_path), {}, at_once=2, tell=stop)
    assert happened == ["begin", "begin", "terminated", "waited", "terminated", "waited"]
    assert all(file.closed for file in complaints)


def test_how_far_a_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Results(tmp_path)
    assert room._rounds(Job(TINY, 0), results) == (0, 4)
    interrupted(results, monkeypatch)
    assert room._rounds(Job(TINY, 0), results) == (2, 4)


# -------------------------------------------------------------------------------------------------- real processes


@pytest.mark.exhaustive
def test_a_real_campaign_with_a_kill_and_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL in mid-run, then a campaign that goes on with it, beside a run that cannot be: no table knows it."""
    monkeypatch.setattr(processes, "PAUSE", 0.05)
    results, whole = Results(tmp_path / "results"), Results(tmp_path / "whole")
    job = Job(find(REAL), 0)
    under_way = room._begin(job, results, {})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and under_way.process.poll() is None:
        if room._rounds(job, results)[0] >= 7:
            break
        time.sleep(0.002)
    under_way.process.kill()
    assert under_way.process.wait() == -signal.SIGKILL, "the run was over before it could be killed"
    under_way.close()
    place = running(results.root, job.run, 0)
    assert list((place / "checkpoints").glob("round-*.safetensors"))
    assert yaml.safe_load((place / "config.yaml").read_text())["rounds"] == 30
    assert not results.place(job.run.name).exists()

    unknown = Job(Run("quick/rotated/unknown", job.run.config), 0)
    told: list[Progress] = []
    failed = campaign([unknown, job], results, {}, at_once=2, tell=told.append)
    assert [one.job for one in failed] == [unknown]
    assert "no run 'quick/rotated/unknown'" in failed[0].why
    assert "Traceback" not in failed[0].why
    assert told[-1].done == 2
    assert missing([job.run], [0], results) == []  # kept: not run again
    assert left_over(results) == []

    carry_out(job.run, 0, whole, {})
    assert untimed(results.load(job.run, 0)) == untimed(whole.load(job.run, 0))
