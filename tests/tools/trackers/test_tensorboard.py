"""Written to event files and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import watched

from coterie.tools.trackers import TensorBoard, tracker

pytest.importorskip("tensorboard", reason="tensorboard is not installed")
pytestmark = [
    # Of its own imports; this is the library's business.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:google"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def read_back(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory), size_guidance={"histograms": 0}).Reload()


def test_scalars_histograms_and_parameters_are_read_back(tmp_path: Path) -> None:
    result = watched.tracked([TensorBoard(tmp_path / "tb", config=watched.CONFIG)])
    found = read_back(tmp_path / "tb")
    accuracy = {event.step: event.value for event in found.Scalars("round/accuracy")}
    summaries = {event.round: event.summary for event in result.history if event.summary is not None}
    assert set(accuracy) == {2, 4}
    for round_, summary in summaries.items():
        assert accuracy[round_] == pytest.approx(summary.accuracy, abs=1e-6)
    assert {f"round/{name}" for name in ("loss", "macro_f1", "clusters", "ari", "traffic/up")} <= set(
        found.Tags()["scalars"]
    )
    sizes = found.Histograms("round/sizes")
    assert [event.step for event in sizes] == [2, 4]
    assert sizes[-1].histogram_value.num == len(result.summary.sizes)
    assert sizes[-1].histogram_value.sum == 8
    text = found.Tensors("parameters/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| method.k | 2 |" in text
    (final,) = found.Scalars("final/accuracy")
    assert final.value == pytest.approx(result.accuracy, abs=1e-6)


def test_a_resumed_run_goes_on_in_the_same_place(tmp_path: Path) -> None:
    watched.tracked([tracker("tensorboard", tmp_path / "run")], rounds=2, out=tmp_path / "run")
    watched.tracked([tracker("tensorboard", tmp_path / "run")], rounds=4, out=tmp_path / "run", resume=True)
    found = read_back(tmp_path / "run" / "tensorboard")
    assert [event.step for event in found.Scalars("round/accuracy")] == [2, 4]


def test_the_file_is_closed_when_the_run_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the run fails"), TensorBoard(tmp_path) as board:
        watched.tracked([board, watched.fails])
    assert read_back(tmp_path).Tags()["tensors"] == ["parameters/text_summary"]
