"""Runs that were trained by hand-made data, and requests to the application over them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import coterie
from coterie.core.tasks import Local
from coterie.data.federation import Federation
from coterie.serving.api.app import make_app
from coterie.serving.api.limits import ApiLimits
from coterie.serving.api.runs import Named, Runs

LOCAL = Local(epochs=5, batch="full", lr=0.5)
RULES = np.array([[4.0, 0.0], [-4.0, 0.0]])  # the two groups label by the sign of the first number, in opposite ways
HEADERS = {"content-type": "application/json"}
LIMITS = ApiLimits()
BASE = "http://127.0.0.1"


def federation(groups: Sequence[int], seed: int = 0, **how: Any) -> Federation:
    """Clients of forty samples each, labelled by the rule of their group."""
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(40, 2)).astype(np.float32) for _ in groups]
    arrays = [(xs, (xs @ RULES[g] > 0).astype(np.int64)) for xs, g in zip(x, groups, strict=True)]
    return Federation.from_arrays(arrays, **how)


def train(path: Path, method: Any, data: Federation, rounds: int = 4, model: str = "linear") -> coterie.Result[Any]:
    """A run in this directory."""
    return coterie.run(method, data, model, rounds=rounds, out=path)


def app_of(*paths: Path, limits: ApiLimits = LIMITS, **how: Any) -> Any:
    """The application over these run directories."""
    return make_app(Runs([Named(path.name, path) for path in paths], limits), **how)


def ask(app: Any, path: str, body: object = None, *, raw: Any = None, headers: dict[str, str] | None = None) -> Any:
    """The response to a POST with this JSON, or to a GET without any."""

    async def send() -> Any:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            if body is None and raw is None:
                return await client.get(path, headers=headers)
            content = json.dumps(body).encode() if raw is None else raw
            return await client.post(path, content=content, headers=HEADERS | (headers or {}))

    return asyncio.run(send())


def problem(response: Any) -> tuple[int, str, str | None]:
    """Status, code and field of an answer that is an error."""
    said = response.json()["error"]
    assert set(said) == {"code", "message", "field"}
    assert said["message"]
    return response.status_code, said["code"], said["field"]


@contextmanager
def service(*words: str | Path, env: dict[str, str] | None = None) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`coterie api` as a process, and its address; it must end well."""
    process = subprocess.Popen(
        [sys.executable, "-m", "coterie.tools.cli.main", "api", *map(str, words), "--port", "0"],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        preexec_fn=None if os.name == "nt" else lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        assert process.stderr is not None
        lines: list[str] = []
        while not (found := re.search(r"https?://[^/ ]+/", lines[-1] if lines else "")):
            lines.append(process.stderr.readline())
            assert lines[-1], "".join(lines)
        try:
            yield found[0], process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
    assert process.returncode == 0
