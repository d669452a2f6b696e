"""Written offline, to files: no network, no login."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import watched

from coterie.tools.trackers import WandB

pytest.importorskip("wandb", reason="wandb is not installed")
# Of its imports and of files it closes late; this is the library's business.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def written(directory: Path, until: bytes) -> bytes:
    """What the run's file says; the process that writes it may be behind."""
    (file,) = directory.glob("wandb/offline-run-*/run-*.wandb")
    for _ in range(600):
        if until in (text := file.read_bytes()):
            return text
        time.sleep(0.1)
    raise AssertionError(f"{until!r} is not in {file}")


def test_an_offline_run_is_in_its_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tracker = WandB("mine", mode="offline", directory=tmp_path, config=watched.CONFIG)
    watched.tracked([tracker])
    text = written(tmp_path, b"final/macro_f1")
    for word in (b"method.k", b"run.clients", b"mine", b"accuracy", b"clusterability", b"sizes", b"final/macro_f1"):
        assert word in text, word
    assert capfd.readouterr().err == ""


def test_a_failing_run_is_finished_too(tmp_path: Path) -> None:
    tracker = WandB(mode="offline", directory=tmp_path)
    with pytest.raises(RuntimeError, match="the run fails"), tracker:
        watched.tracked([tracker, watched.fails])
    assert tracker._run is None
    assert b"final/macro_f1" not in written(tmp_path, b"run.clients")
