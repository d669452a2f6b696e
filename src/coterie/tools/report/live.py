"""`coterie dashboard`: the report's page over the runs of a directory, which follows their files while it is open.

`/` lists the runs, `/?run=KEY&run=KEY` is the report of these, and `/live` says what has changed since a page was sent.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from coterie.serving.address import is_local
from coterie.tools.report import reading
from coterie.tools.report.figures import KINDS
from coterie.tools.report.figures_style import percent
from coterie.tools.report.page import Cell, Head, Page, Section, Table, clipped, page_of
from coterie.tools.report.record import RunSummary, find_runs, read_run, read_summary, under_way

LISTED = ("config.yaml", "run.json", "rounds.jsonl", "clients.json", "status.json")  # what a line of the list is of
DRAWN = (*LISTED, "trace.jsonl", "newcomers.json", "sketch.safetensors", "privacy.json", "attack.json", "warnings.json")
SLOW = ("map",)  # t-SNE takes seconds: drawn when a run has ended
MOST = 40  # runs shown together: more curves than this tell nothing
KEPT = 8  # pages in memory
Signature = tuple[tuple[int, int] | None, ...]


def signature(path: Path, names: Sequence[str]) -> Signature:
    """When files last changed and their sizes; None for one that is not there."""
    found: list[tuple[int, int] | None] = []
    for name in names:
        try:
            about = os.stat(path / name)  # noqa: PTH116 - thrice as fast, and there are many
            found.append((about.st_mtime_ns, about.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


class Runs:
    """The runs below a directory, read again only where their files have changed. Safe to be asked by several threads.

    A run's key is its path below the directory, and the only name that an address may call it by.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._known: dict[Path, tuple[Signature, RunSummary, str]] = {}
        self._pages: dict[tuple[str, ...], tuple[str, Page]] = {}
        self._lock = threading.Lock()

    def look(self) -> dict[str, tuple[RunSummary, str]]:
        """The runs as they are now, and when each was started."""
        known: dict[Path, tuple[Signature, RunSummary, str]] = {}
        for path in find_runs(self.directory):
            now, before = signature(path, LISTED), self._known.get(path)
            if before is None or before[0] != now:
                about = reading.mapping(reading.read_json(path / "run.json").value)
                before = now, read_summary(path), reading.text(about.get("started")) or ""
            known[path] = before
        self._known = known
        return {_key(path, self.directory): (_aged(summary), began) for path, (_, summary, began) in known.items()}

    def page(self, asked: Sequence[str]) -> tuple[str, Page]:
        """The page of these runs, or the list of all, and a text that differs when anything on it does."""
        with self._lock:
            found = self.look()
            keys = tuple(key for key in dict.fromkeys(asked) if key in found)[:MOST]
            shown = [(key, found[key][0]) for key in keys]
            parts = [(key, s.status, s.problem, signature(s.path, DRAWN)) for key, s in shown]
            told: object = parts or sorted(found.items(), key=lambda item: item[0])
            state = blake2b(repr((asked, told)).encode(errors="replace"), digest_size=8)
            before = self._pages.get(tuple(asked))
            if before is None or before[0] != state.hexdigest():
                page = self._report(shown) if shown else listing(self.directory, found)
                lost = [key for key in asked if key not in found]
                said = (f"There is no run {clipped(key, 200)!r} here." for key in lost)
                page.note = " ".join(filter(None, (page.note, *said)))
                before = self._pages[tuple(asked)] = state.hexdigest(), page
                while len(self._pages) > KEPT:
                    del self._pages[next(iter(self._pages))]
            return before

    def _report(self, shown: Sequence[tuple[str, RunSummary]]) -> Page:
        running = any(summary.status == "running" for _, summary in shown)
        kinds = [kind for kind in KINDS if not (running and kind.name in SLOW)]
        return page_of([read_run(summary.path) for _, summary in shown], kinds=kinds)


def _key(path: Path, directory: Path) -> str:
    """A name of bytes that are no text is spelt out, so that it can stand in an address."""
    return os.fsencode(path.relative_to(directory).as_posix()).decode("utf-8", "backslashreplace")


def _aged(summary: RunSummary) -> RunSummary:
    """Nothing changes in the files of a run that was killed: its lock tells, or else the clock."""
    if summary.status != "running":
        return summary
    status, why = under_way(summary.path)
    return summary if status == "running" else replace(summary, status=status, problem=why)


def listing(directory: Path, found: Mapping[str, tuple[RunSummary, str]]) -> Page:
    """The list of runs, the newest first."""
    title = f"{len(found)} run{'s' * (len(found) != 1)} in {clipped(directory, 200)}"
    if not found:
        begin = f"There is no run here yet. Start one: coterie run --out {directory / 'first'}"
        return Page(title, Head(lines=[begin]))
    forms: list[tuple[str, Callable[[RunSummary], str]]] = [
        ("seed", lambda s: "-" if s.seed is None else str(s.seed)),
        ("rounds", lambda s: f"{s.rounds_done} of {s.rounds_wanted}" if s.rounds_wanted else str(s.rounds_done)),
        ("accuracy", lambda s: "-" if s.accuracy is None else percent(s.accuracy)),
        ("loss", lambda s: "-" if s.loss is None else f"{s.loss:.4g}"),
        ("clusters", lambda s: "-" if s.clusters is None else str(s.clusters)),
        ("ARI", lambda s: "-" if s.ari is None else f"{s.ari:.2f}"),
    ]
    order = sorted(found.items(), key=lambda item: (item[1][1], item[0]), reverse=True)
    rows: list[Sequence[str | Cell]] = [
        [
            Cell(
                clipped(key, 200),
                link=f"?{urlencode({'run': key})}",
                check=key,
                problems=[clipped(s.problem, 300)] if s.problem else [],
            ),
            Cell(s.status, status=True),
            clipped(s.method, 120),
            clipped(s.data, 120),
            *(how(s) for _, how in forms),
            clipped(began, 40),
        ]
        for key, (s, began) in order
    ]
    numbers = [name for name, _ in forms]
    columns = ["run", "status", "method", "data", *numbers, "started"]
    table = Table("The newest first", columns, rows, frozenset(numbers))
    return Page(title, sections=[Section(table=table, selects=True)])


# ------------------------------------------------------------------------------------------------- over HTTP


def make_app(directory: Path, host: str = "127.0.0.1") -> Any:
    """The application over the runs of a directory, as it is bound to a host."""
    from plotly.offline import get_plotlyjs
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    runs = Runs(directory)

    def page(request: Any) -> Any:
        asked = request.query_params.getlist("run")
        state, found = runs.page(asked)
        live = {"address": f"live?{urlencode([('run', key) for key in asked])}", "state": state}
        return HTMLResponse(found.html("live", live))

    def changes(request: Any) -> Any:
        state, found = runs.page(request.query_params.getlist("run"))
        if request.query_params.get("seen") == state:
            return JSONResponse({"state": state})
        return JSONResponse({"state": state, "main": found.main(), "figures": found.figures})

    def script(_: Any) -> Any:
        return Response(get_plotlyjs(), media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})

    def guarded(view: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """No other site may reach a local page by a name that points here."""

        def answer(request: Any) -> Any:
            if is_local(host) and not is_local(request.url.hostname or ""):
                return PlainTextResponse("This page is for this machine.\n", 403)
            found = view(request)
            found.headers["X-Content-Type-Options"] = "nosniff"
            found.headers["Referrer-Policy"] = "no-referrer"
            found.headers["X-Frame-Options"] = "DENY"
            return found

        return answer

    views = {"/": page, "/live": changes, "/plotly.js": script}
    return Starlette(routes=[Route(path, guarded(view), methods=["GET"]) for path, view in views.items()])


def serve(directory: Path, sock: socket.socket, host: str) -> None:
    """Answer until interrupted."""
    import plotly.graph_objects  # noqa: F401 - before there are threads: two of them would trip over each other in it
    import uvicorn

    config = uvicorn.Config(make_app(directory, host), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    with sock, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[sock])
