"""The application: addresses, and what answers them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from coterie.core.errors import CoterieError
from coterie.core.version import __version__
from coterie.serving.api.docs_page import page
from coterie.serving.api.guard import ApiGuard
from coterie.serving.api.metrics import CONTENT_TYPE
from coterie.serving.api.openapi import document
from coterie.serving.api.problems import RequestError, as_json, status_of
from coterie.serving.api.runs import Runs
from coterie.serving.api.service import Service

Endpoint = Callable[[Any], Awaitable[bytes]]


def make_app(runs: Runs, *, token: str | None = None, local: bool = True, watch: float = 0.0) -> FastAPI:
    """The application over these runs.

    token: required of every request but /healthz, where there is one. local: only this machine can reach the service.
    watch: seconds between two looks for newer checkpoints; 0: never.
    """
    service = Service.of(runs)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with _reloading(service, watch):
            yield
        service.close()

    app = FastAPI(
        title="Coterie", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    _add_routes(app, service)
    app.openapi = lambda: document(runs, token is not None)  # type: ignore[method-assign]
    app.add_exception_handler(CoterieError, _failed)
    app.add_exception_handler(HTTPException, _not_there)
    app.add_exception_handler(Exception, _broken)
    app.add_middleware(ApiGuard, metrics=service.metrics, token=token, local=local)
    app.state.service = service
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    for start in ("", "/runs/{name}"):
        _add(app, f"{start}/predict", "POST", service.predict)
        _add(app, f"{start}/assign", "POST", service.assign)
        _add(app, f"{start}/clusters", "GET", service.clusters)
    _add(app, "/runs", "GET", service.list_runs)
    _add(app, "/healthz", "GET", service.health)

    async def metrics(request: Any) -> Response:
        request.scope["coterie.path"] = "/metrics"
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    async def docs(request: Any) -> Response:
        request.scope["coterie.path"] = "/docs"
        return Response(page(app.openapi()), media_type="text/html")

    app.add_route("/metrics", metrics, methods=["GET"])
    app.add_route("/docs", docs, methods=["GET"])


def _add(app: FastAPI, path: str, method: str, endpoint: Endpoint) -> None:
    """Bodies are parsed and made by the endpoint: a plain route, without a model of every row."""

    async def answer(request: Any) -> Response:
        request.scope["coterie.path"] = path
        return Response(await endpoint(request), media_type="application/json")

    app.add_route(path, answer, methods=[method])


@asynccontextmanager
async def _reloading(service: Service, watch: float) -> AsyncIterator[None]:
    """While this lasts, runs are loaded again on SIGHUP, and when they have newer checkpoints."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def begin(work: Any) -> None:
        task = loop.create_task(work)
        tasks.add(task)  # or it might be collected while it runs
        task.add_done_callback(tasks.discard)

    hangup = getattr(signal, "SIGHUP", None)  # which Windows has not
    if hangup is not None:
        with suppress(ValueError, RuntimeError, NotImplementedError):  # only the main thread hears signals
            loop.add_signal_handler(hangup, lambda: begin(service.reload()))
    if watch > 0:
        begin(service.watch(watch))
    try:
        yield
    finally:
        if hangup is not None:
            with suppress(ValueError, RuntimeError, NotImplementedError):
                loop.remove_signal_handler(hangup)
        for task in tasks:
            task.cancel()


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, CoterieError)
    status = status_of(error)
    headers = {"connection": "close"} if status in (408, 413) else None  # the rest of the body is not wanted
    return Response(as_json(error), status, headers, "application/json")


async def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path[:200]}: {error.detail}; see /docs"
    found = RequestError(text, code="request-not-found", status=error.status_code)
    return Response(as_json(found), error.status_code, error.headers, "application/json")


async def _broken(_: Request, error: Exception) -> Response:
    """An error of ours; its traceback is in the log."""
    found = CoterieError(f"{type(error).__name__}: see the log of the service", code="unspecified")
    return Response(as_json(found), 500, None, "application/json")
