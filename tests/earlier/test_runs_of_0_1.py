"""Runs that version 0.1 wrote: every method's, and each kind of run directory, are still read and still go on.

runs-0.1.zip was written by 0.1.0 itself: two rounds on visits.csv (eight sites, two hidden rules) with a linear model.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.training.config import read
from coterie.training.events import RoundDone
from coterie.training.execute import execute

ARCHIVE = Path(__file__).parent / "runs-0.1.zip"
with zipfile.ZipFile(ARCHIVE) as _archive:
    RUNS = sorted({name.rpartition("/")[0] for name in _archive.namelist() if name.endswith("config.yaml")})
FROM_PYTHON, NETWORK = "runs/python-arrays", "runs/network"
FROM_TABLE = [run for run in RUNS if run not in (FROM_PYTHON, NETWORK)]


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the runs and the table they were trained on."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assigned(run: Path) -> list[int]:
    found: dict[str, int] = json.loads((run / "assignments.json").read_text())
    return [found[client] for client in sorted(found, key=int)]


def test_there_is_one_of_every_kind() -> None:
    assert len(RUNS) == 30
    assert {"runs/ditto", "runs/wecfl-cam", "runs/regression", "runs/newcomers", FROM_PYTHON, NETWORK} < set(RUNS)


@pytest.mark.parametrize("run", FROM_TABLE)
def test_a_run_is_read_and_predicts(earlier: Path, run: str) -> None:
    loaded = coterie.load(earlier / run)
    if run != "runs/newcomers":  # which holds some of the eight back
        assert loaded.assignments.tolist() == assigned(earlier / run)
    x = np.array([[3.0, 0.0, 0.0], [-3.0, 0.0, 0.0]])
    assert len(loaded.predict("site-1", x)) == 2


@pytest.mark.parametrize("run", FROM_TABLE)
def test_a_run_goes_on(earlier: Path, run: str) -> None:
    heard: list[Any] = []
    config = read(earlier / run / "config.yaml", ["rounds=3"])
    result = execute(config, earlier / run, resume=True, listeners=[heard.append])
    assert [event.round for event in heard if isinstance(event, RoundDone)] == [3]
    assert len(result.assignments) == 8


def test_a_run_made_in_python_is_read_with_its_data(earlier: Path) -> None:
    rng, clients = np.random.default_rng(0), []
    for client in range(6):
        x = rng.normal(size=(12, 3)).astype("float32")
        clients.append((x, (x[:, 0] * (1 if client % 2 else -1) > 0).astype("int64")))
    loaded = coterie.load(earlier / FROM_PYTHON, method=coterie.WeCFL(k=2), federation=clients, model="linear")
    assert loaded.assignments.tolist() == assigned(earlier / FROM_PYTHON)


def test_a_run_over_a_network_is_read(earlier: Path) -> None:
    loaded = coterie.load(earlier / NETWORK)
    assert loaded.assignments.tolist() == [0, 0, 0]
