"""A configuration carried out in a directory: what it says, what it writes, and how it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import coterie
from conftest import raises
from coterie.core.errors import CoterieError
from coterie.engines.choose import Choice
from coterie.training.build import build
from coterie.training.config import RunConfig, read
from coterie.training.events import Event, RoundDone
from coterie.training.execute import execute
from coterie.training.run_directory import read_history

WORDS = [
    "data.partition.clients=8",
    "method=wecfl",
    "method.k=2",
    "local.epochs=1",
    "rounds=3",
    "checkpoint_every=1",
    "seed=4",
]


def config(*more: str) -> RunConfig:
    return read(None, [*WORDS, *more])


def test_as_python_would(tmp_path: Path) -> None:
    said: list[str] = []
    result = execute(config(), tmp_path / "run", say=said.append)
    job = build(config())
    same = coterie.run(job.method, job.federation, job.model, rounds=3, seed=4)
    assert torch.equal(result.state.centers, same.state.centers)
    assert result.summary == same.summary
    assert result.run_dir == tmp_path / "run"
    assert said[0] == job.federation.describe()
    assert [line.partition(":")[0] for line in said[1:]] == ["engine"]
    assert [event.round for event in read_history(tmp_path / "run", 3)] == [1, 2, 3]
    for name in ("config.yaml", "run.json", "rounds.jsonl", "trace.jsonl", "sketch.safetensors", "clients.json"):
        assert (tmp_path / "run" / name).is_file(), name


def test_the_directory_says_what_was_run(tmp_path: Path) -> None:
    execute(config("evaluate_last=2"), tmp_path / "run")
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["method"]["k"] == 2
    assert written["method"]["kmeans_weights"] == "size"  # defaults too
    assert written["evaluate_last"] == 2
    assert written["engine"] == {"name": "batched", "workers": 1}  # what auto, the default, came to
    again = execute(read(tmp_path / "run" / "config.yaml"), tmp_path / "again")
    assert (tmp_path / "again" / "clients.json").read_bytes() == (tmp_path / "run" / "clients.json").read_bytes()
    assert again.summary.accuracy is not None


def test_interrupted_and_resumed(tmp_path: Path) -> None:
    class CrashError(Exception):
        pass

    def crash(event: Event) -> None:
        if isinstance(event, RoundDone) and event.round == 2:
            raise CrashError

    whole = execute(config(), tmp_path / "whole")
    with pytest.raises(CrashError):
        execute(config(), tmp_path / "run", listeners=[crash])
    result = execute(config(), tmp_path / "run", resume=True)
    assert [event.round for event in result.history] == [2, 3]
    np.testing.assert_array_equal(result.assignments, whole.assignments)
    assert torch.equal(result.state.centers, whole.state.centers)


def test_listeners_are_told(tmp_path: Path) -> None:
    heard: list[str] = []
    execute(config(), tmp_path / "run", listeners=[lambda event: heard.append(type(event).__name__)])
    assert heard == ["RunStarted", "RoundDone", "RoundDone", "RoundDone", "RunEnded"]


def test_a_job_that_is_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = build(config())

    def never(_: Any) -> Any:
        raise AssertionError("built again")

    monkeypatch.setattr("coterie.training.execute.build", never)
    result = execute(config(), tmp_path / "run", components=job)
    assert result.federation is job.federation
    assert result.method is job.method


def test_what_auto_came_to_is_said_and_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Choice("batched", 1, "tried")
    monkeypatch.setattr("coterie.training.assembly.chosen", lambda *_: choice)
    said: list[str] = []
    execute(config("engine=auto"), tmp_path / "run", say=said.append)
    assert said[1:] == [f"engine: {choice}"]
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["engine"] == {"name": "batched", "workers": 1}


@pytest.mark.parametrize("resume", [False, True])
def test_a_place_that_is_taken_or_empty(resume: bool, tmp_path: Path) -> None:
    place = tmp_path / "run"
    if not resume:
        place.mkdir()
        (place / "mine.txt").write_text("precious")
    with pytest.raises(CoterieError, match="no run to resume there" if resume else "exists already"):
        execute(config(), place, resume=resume)
    if not resume:
        assert [file.name for file in place.iterdir()] == ["mine.txt"]


def test_what_cannot_work_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with raises("config-invalid-value", match="participation"):
        execute(config("participation=99"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
