"""What /metrics shows to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from coterie.serving.api.runs import Runs

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one service."""

    def __init__(self, runs: Runs) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "coterie_requests", "Requests that were answered.", ["path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "coterie_request_seconds", "Time to answer.", ["path"], buckets=SECONDS, registry=self.registry
        )
        self.rows = Counter("coterie_rows", "Samples that were predicted.", ["run"], registry=self.registry)
        self.reloads = Counter("coterie_reloads", "Runs that were loaded again.", ["run", "ok"], registry=self.registry)
        self.registry.register(_State(runs))
        self._bound: dict[tuple[str, int], tuple[Any, Any]] = {}  # `labels` is slow
        self._rows: dict[str, Any] = {}

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request; path: the pattern, never what a client wrote."""
        bound = self._bound.get((path, status))
        if bound is None:
            bound = self.requests.labels(path, str(status)), self.seconds.labels(path)
            self._bound[path, status] = bound
        bound[0].inc()
        bound[1].observe(seconds)

    def predicted(self, run: str, rows: int) -> None:
        """Count the samples of a request."""
        bound = self._rows.get(run)
        if bound is None:
            bound = self._rows[run] = self.rows.labels(run)
        bound.inc(rows)

    def text(self) -> bytes:
        """In Prometheus's format."""
        found: bytes = generate_latest(self.registry)
        return found


class _State(Collector):
    """Numbers that are read when they are asked for."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def collect(self) -> Iterator[Any]:
        rounds = GaugeMetricFamily("coterie_run_round", "The round of the served checkpoint.", labels=["run"])
        kept = GaugeMetricFamily("coterie_newcomers", "Newcomers that are kept.", labels=["run"])
        ready = GaugeMetricFamily("coterie_network_bytes", "Networks that are kept ready.", labels=["run"])
        for name, run in self._runs.by_name.items():
            rounds.add_metric([name], run.now.round)
            kept.add_metric([name], len(run.now.kept))
            ready.add_metric([name], run.now.ready_bytes)
        yield from (rounds, kept, ready)
