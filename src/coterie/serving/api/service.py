"""What the service does for each request, and how runs are loaded again while it goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from coterie.core.compute import cores
from coterie.core.errors import CoterieError
from coterie.serving.api import answers
from coterie.serving.api.bodies import read_body
from coterie.serving.api.limits import ApiLimits
from coterie.serving.api.metrics import Metrics
from coterie.serving.api.problems import RequestError
from coterie.serving.api.requests import AssignRequest, PredictRequest
from coterie.serving.api.runs import LiveRun, Runs
from coterie.serving.api.served_run import ServedRun

SMALL_BODY = 65_536  # bytes that are parsed at once; larger ones in a thread, so that others need not wait
SMALL_WORK = 4e6  # multiplications that are done at once
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Service:
    """The runs, and the threads that work for requests: several for predictions, one for what trains or loads."""

    runs: Runs
    limits: ApiLimits
    metrics: Metrics
    quick: Executor
    slow: Executor

    @staticmethod
    def of(runs: Runs) -> Service:
        """A service with threads of its own."""
        one = partial(torch.set_num_threads, 1)
        return Service(
            runs,
            runs.limits,
            Metrics(runs),
            ThreadPoolExecutor(cores(), "coterie-predict", initializer=one),
            ThreadPoolExecutor(1, "coterie-assign", initializer=one),
        )

    def close(self) -> None:
        """End the threads; what has not begun is dropped."""
        for pool in (self.quick, self.slow):
            pool.shutdown(wait=False, cancel_futures=True)

    async def predict(self, request: Any) -> bytes:
        """POST /predict."""
        body, path = await read_body(request, self.limits), request.path_params.get("name")
        if len(body) > SMALL_BODY:
            return await self._within(self.quick, partial(self._predicted, body, path))
        asked = PredictRequest.read(body, self.limits)
        name, run = self.runs.find(asked.run, path)
        if run.cost(asked.count) > SMALL_WORK:
            return await self._within(self.quick, partial(self._answered, name, run, asked))
        return self._answered(name, run, asked)

    def _predicted(self, body: bytes, path: str | None) -> bytes:
        asked = PredictRequest.read(body, self.limits)
        return self._answered(*self.runs.find(asked.run, path), asked)

    def _answered(self, name: str, run: ServedRun, asked: PredictRequest) -> bytes:
        found = run.predict(asked)
        self.metrics.predicted(name, asked.count)
        return answers.encoded(answers.prediction(name, found, asked.proba))

    async def assign(self, request: Any) -> bytes:
        """POST /assign."""
        body, path = await read_body(request, self.limits), request.path_params.get("name")
        return await self._within(self.slow, partial(self._assigned, body, path))

    def _assigned(self, body: bytes, path: str | None) -> bytes:
        asked = AssignRequest.read(body, self.limits)
        name, run = self.runs.find(asked.run, path)
        return answers.encoded(answers.assignment(name, run.assign(asked), asked.keep))

    async def clusters(self, request: Any) -> bytes:
        """GET /clusters."""
        name, run = self.runs.find(request.query_params.get("run"), request.path_params.get("name"))
        members = request.query_params.get("members", "false")
        if members not in ("true", "false"):
            raise RequestError("members: expected true or false", code="request-invalid", field="members")
        return answers.encoded(answers.clusters(name, run, members == "true"))

    async def list_runs(self, request: Any) -> bytes:
        """GET /runs."""
        return answers.encoded(answers.runs({name: run.now for name, run in self.runs.by_name.items()}))

    async def health(self, request: Any) -> bytes:
        """GET /healthz."""
        return b'{"status":"ok"}'

    async def _within(self, pool: Executor, work: Callable[[], Value]) -> Value:
        """Done in a thread, within the time of a request."""
        try:
            return await asyncio.wait_for(
                asyncio.get_running_loop().run_in_executor(pool, work), timeout=self.limits.seconds
            )
        except TimeoutError:
            raise RequestError(
                f"no answer within {self.limits.seconds:g} seconds; send fewer rows, or try again later",
                code="request-too-slow",
                status=503,
            ) from None

    # -------------------------------------------------------------------------------------------------------- reload

    async def reload(self, only_stale: bool = False) -> None:
        """Load runs again, one after the other; one that cannot be loaded stays as it is."""
        for name, run in self.runs.by_name.items():
            if not only_stale or run.stale:
                await asyncio.get_running_loop().run_in_executor(self.slow, self._reloaded, name, run)

    def _reloaded(self, name: str, run: LiveRun) -> None:
        try:
            lost = run.reload()
        except Exception as error:  # whatever it is, what is served is served on
            self.metrics.reloads.labels(name, "false").inc()
            what = str(error) if isinstance(error, CoterieError) else repr(error)
            sys.stderr.write(f"{name}: cannot be loaded again, so round {run.now.round} stays: {what}\n")
            return
        self.metrics.reloads.labels(name, "true").inc()
        gone = f"; newcomers that could not be kept: {', '.join(lost)}" if lost else ""
        sys.stderr.write(f"{name}: round {run.now.round} is served now{gone}\n")

    async def watch(self, seconds: float) -> None:
        """Load runs again when their directories have newer checkpoints."""
        while True:
            await asyncio.sleep(seconds)
            await self.reload(only_stale=True)
