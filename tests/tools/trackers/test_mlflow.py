"""Written to a SQLite store in a directory, without a server, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import watched

from coterie.tools.trackers import MLflow

pytest.importorskip("mlflow", reason="mlflow is not installed")
pytest.importorskip("sqlalchemy", reason="mlflow's local store needs sqlalchemy")
# Of its imports and of its store; this is the library's business.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)  # where mlflow puts what it is not told to put elsewhere
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return f"sqlite:///{tmp_path / 'store.db'}"


def run_of(tracker: MLflow) -> Any:
    from mlflow import MlflowClient

    assert tracker.run_id is not None
    return MlflowClient(tracking_uri=tracker.uri).get_run(tracker.run_id)


def test_parameters_and_metrics_are_read_back(uri: str, capfd: pytest.CaptureFixture[str]) -> None:
    from mlflow import MlflowClient

    tracker = MLflow("mine", uri, name="a run", config=watched.CONFIG)
    result = watched.tracked([tracker])
    assert capfd.readouterr().err == ""  # the store is made without a word
    found = run_of(tracker)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "a run"
    assert found.data.params["method.k"] == "2"
    assert found.data.params["run.method"] == "WeCFL"
    history = MlflowClient(tracking_uri=uri).get_metric_history(found.info.run_id, "accuracy")
    summaries = [(event.round, event.summary.accuracy) for event in result.history if event.summary is not None]
    assert [(metric.step, metric.value) for metric in history] == summaries
    assert found.data.metrics["final.accuracy"] == result.accuracy
    assert [found.data.metrics[f"sizes.{k}"] for k in range(result.summary.clusters)] == list(result.summary.sizes)

    # Another run of the same experiment, which fails.
    second = MLflow("mine", uri)
    with pytest.raises(RuntimeError, match="the run fails"), second:
        watched.tracked([second, watched.fails])
    assert run_of(second).info.status == "FAILED"
    assert run_of(second).info.experiment_id == found.info.experiment_id
