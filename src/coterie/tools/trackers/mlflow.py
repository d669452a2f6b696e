"""A run in MLflow: `mlflow ui --backend-store-uri sqlite:///mlflow.db`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from coterie.tools.trackers import Config, Tracker, hushed, needs
from coterie.training.events import RunStarted


class MLflow(Tracker):
    """Parameters, metrics by round and cluster sizes in a store; through a client of its own, so that an MLflow run
    which the caller has open stays the caller's."""

    def __init__(
        self,
        experiment: str = "coterie",
        uri: str | None = None,  # MLflow's own default, or MLFLOW_TRACKING_URI
        *,
        name: str | None = None,
        config: Config | None = None,
    ) -> None:
        super().__init__(config)
        self._library = needs("mlflow", "mlflow")
        self.experiment, self.uri, self.name = experiment, uri, name
        self.run_id: str | None = None
        self._client: Any = None

    def begin(self, start: RunStarted) -> None:
        """A run of the experiment, and its parameters."""
        param = self._library.entities.Param
        with hushed("mlflow", "mlflow.store.db.utils", "alembic"):
            client = self._library.MlflowClient(tracking_uri=self.uri)
            there = client.get_experiment_by_name(self.experiment)
            experiment = there.experiment_id if there else client.create_experiment(self.experiment)
            self.run_id = client.create_run(experiment, run_name=self.name).info.run_id
            said = [param(key, str(value)[:500]) for key, value in self.parameters(start).items()]
            for first in range(0, len(said), 100):  # as many as MLflow takes at once
                client.log_batch(self.run_id, params=said[first : first + 100])
        self._client = client

    def log(self, round_: int, scalars: Mapping[str, float], sizes: tuple[int, ...]) -> None:
        """An evaluated round; there are no histograms here, so sizes are a metric per cluster."""
        self._metrics(dict(scalars) | {f"sizes.{k}": float(size) for k, size in enumerate(sizes[:50])}, round_)

    def end(self, summary: Mapping[str, float]) -> None:
        """How the run ended."""
        self._metrics({f"final.{key}": value for key, value in summary.items()}, 0)

    def _metrics(self, values: Mapping[str, float], step: int) -> None:
        now, metric = int(time.time() * 1000), self._library.entities.Metric
        self._client.log_batch(self.run_id, metrics=[metric(key, value, now, step) for key, value in values.items()])

    def close(self, failed: bool = False) -> None:
        """The run has ended."""
        if self._client is not None:
            self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")
            self._client = None
