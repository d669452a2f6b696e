"""The power fails after every flush of a run: what was saved is there, and the run ends in the same bits."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from conftest import ROOT, linear, make_federation
from coterie.core import files
from coterie.training import run_directory
from coterie.training.events import RunStarted

sys.path.append(str(ROOT / "reliability"))
import power_loss

LOCAL = coterie.Local(steps=1, batch=4, lr=0.1, momentum=0.9, keep_optimizer=True)


def go(path: Path, listen: Callable[[Any], None] = lambda _: None) -> Any:
    method, resume = coterie.WeCFL(k=2, local=LOCAL), (path / "config.yaml").is_file()
    settings: Any = {"rounds": 3, "checkpoint_every": 1, "engine": "sequential"}
    return coterie.run(
        method, make_federation(4), linear(), out=path, resume=resume, listeners=[listen], **settings
    ).state


def failures(place: Path, moments: list[power_loss.Moment], root: int) -> list[str]:
    """Of every moment and way: rounds that were lost, results that differ."""
    whole, draw, found = go(place / "whole"), random.Random(0), []
    for number, moment in enumerate(moments):
        for way in power_loss.WAYS:
            done: list[int] = []
            after = place / f"after-{number}-{way}"
            power_loss.rebuilt(moment, root, after, way, draw)

            def listen(event: Any, done: list[int] = done) -> None:
                done.extend([event.done] if isinstance(event, RunStarted) else [])

            state = go(after / "run", listen)
            if done[0] < moment.reported:
                found.append(f"{number} {way}: went on from {done[0]}, not from {moment.reported}")
            if not torch.equal(state.centers, whole.centers):
                found.append(f"{number} {way}: other models")
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")  # of rounds whose lines were lost
def test_what_was_saved_survives(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    moments = power_loss.record(disk, lambda: go(disk / "run"))
    assert max(moment.reported for moment in moments) == 3
    assert failures(tmp_path, moments[1::5], disk.stat().st_ino) == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_without_flushing_directories_it_would_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: here the new directory is not flushed, as it was not in an earlier version."""
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr(
        run_directory, "make_directory", lambda path, mode=0o777: path.mkdir(mode, parents=True, exist_ok=True)
    )
    moments = power_loss.record(disk, lambda: go(disk / "run"))
    lost = failures(tmp_path, moments[-1:], disk.stat().st_ino)
    assert "strict: went on from 0, not from 3" in " ".join(lost)


def test_a_directory_and_those_above_it_are_made(tmp_path: Path) -> None:
    files.make_directory(tmp_path / "a" / "b" / "c")
    files.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
