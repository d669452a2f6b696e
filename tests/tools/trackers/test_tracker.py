"""What all trackers share: which events become what, and how one is found by name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import watched

import coterie.tools.trackers
from conftest import raises
from coterie.tools.trackers import Tracker, tracker
from coterie.training.events import RunStarted


class Notes(Tracker):
    """Keeps what it is told."""

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self.said: list[tuple[Any, ...]] = []

    def begin(self, start: RunStarted) -> None:
        self.said.append(("begin", self.parameters(start)))

    def log(self, round_: int, scalars: Mapping[str, float], sizes: tuple[int, ...]) -> None:
        self.said.append(("log", round_, dict(scalars), sizes))

    def end(self, summary: Mapping[str, float]) -> None:
        self.said.append(("end", dict(summary)))

    def close(self, failed: bool = False) -> None:
        self.said.append(("close", failed))


def test_a_run_is_parameters_then_evaluated_rounds_then_a_summary() -> None:
    notes = Notes(watched.CONFIG)
    result = watched.tracked([notes])
    (_, parameters), *logged, (_, summary), closed = notes.said
    assert parameters["run.method"] == "WeCFL"
    assert parameters["run.clients"] == 8
    assert parameters["method.k"] == 2
    assert parameters["data.partition.angles"] == "[0, 90]"
    assert [(kind, round_) for kind, round_, _, _ in logged] == [("log", 2), ("log", 4)]
    last = result.history[-1]
    _, _, scalars, sizes = logged[-1]
    assert sizes == result.summary.sizes
    wanted = ("loss", "accuracy", "macro_f1", "clusters", "ari", "nmi", "traffic/down", "traffic/up", "seconds")
    assert set(scalars) >= {*wanted, "client_seconds", "missing", "discrepancy", "clusterability"}
    assert scalars["accuracy"] == result.accuracy
    assert scalars["traffic/up"] == last.layers["traffic"]["up"] > 0
    assert "mixture_error" not in scalars  # there is none, and NaN is not a number
    assert summary["accuracy"] == result.accuracy
    assert summary["seconds"] == result.seconds
    assert closed == ("close", False)


def test_a_run_that_fails_is_closed_as_failed() -> None:
    with pytest.raises(RuntimeError, match="the run fails"), Notes() as notes:
        watched.tracked([notes, watched.fails])
    assert notes.said[-1] == ("close", True)


def test_numbers_that_are_none_are_left_out() -> None:
    assert coterie.tools.trackers.finite({"a": 1, "b": None, "c": float("nan"), "d": float("inf")}) == {"a": 1.0}


def test_an_unknown_tracker(tmp_path: Path) -> None:
    with raises("config-unknown-name", match=r"--track: unknown tracker 'tensorbord'\. Did you mean 'tensorboard'"):
        tracker("tensorbord", tmp_path)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_library_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with raises("extra-missing", match=rf"needs {name}: pip install 'coterie\[{name}\]'"):
        tracker(name, tmp_path)


def test_public_names() -> None:
    for name in coterie.tools.trackers.__all__:
        assert getattr(coterie.tools.trackers, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = coterie.tools.trackers.nothing
