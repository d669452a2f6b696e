"""Pages besides the live one, made when they are asked for: of a cluster, of a client, and files to download."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.network.server import load
from coterie.serving.model_card import model_card
from coterie.tools.dashboard import downloads, places
from coterie.tools.dashboard.listing import Line, RunList
from coterie.tools.dashboard.studio import Kept, Studio
from coterie.training.explanation import Explanation
from coterie.training.result import Result

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title><script src="assets/theme.js"></script>
<link rel="stylesheet" href="assets/style.css"></head>
<body><header><h1><a href="./">Coterie</a></h1><p class="soft directory">{directory}</p></header>
<main>{body}</main></body></html>"""


class Library:
    """Runs that were loaded for pages, and what was said about their clients, until their files change."""

    def __init__(self) -> None:
        self._results: Kept[Result[Any]] = Kept(4)
        self._said: Kept[Explanation] = Kept(256)

    def result(self, line: Line) -> Result[Any]:
        """The run. Code of its own is not imported: such a run is refused."""
        return self._results.get(line.key, _saves(line.summary.path), lambda: load(line.summary.path))

    def explain(self, line: Line, client: int) -> Explanation:
        """Why a client is in its cluster."""
        result = self.result(line)
        names = result.known.names
        who = client if names is None or client >= len(names) else names[client]
        return self._said.get((line.key, client), _saves(line.summary.path), lambda: result.explain(who))


def _saves(path: Path) -> tuple[tuple[str, int, int], ...]:
    files = sorted((path / "checkpoints").glob("round-*.safetensors"))
    return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)


def add_pages(app: Any, runs: RunList, studio: Studio) -> None:
    """Add the pages to the application's server."""
    pages = Pages(runs, studio)
    made = {"/cluster": pages.cluster, "/client": pages.client, "/download/assignments.csv": pages.assignments}
    made |= {"/download/model.zip": pages.model, "/download/card.md": pages.card}
    for path, view in made.items():
        app.server.add_url_rule(path, f"coterie{path}", _told(view, pages.shown))


class Pages:
    """What is answered at each address; which run, cluster or client is meant stands in the request."""

    def __init__(self, runs: RunList, studio: Studio) -> None:
        self._runs, self._studio, self._library = runs, studio, Library()

    def cluster(self) -> Any:
        """The page of a cluster."""
        line, words = self._asked()
        wanted = words.get("cluster", 0)
        card = lambda: model_card(self._library.result(line), wanted, look_at_data=False)  # noqa: E731
        return self.shown(f"Cluster {wanted}", places.cluster_page(line.key, self._studio.record(line), wanted, card))

    def client(self) -> Any:
        """The page of a client."""
        line, words = self._asked()
        wanted = words.get("client", 0)
        record = self._studio.record(line)
        parts = places.client_page(line.key, record, wanted, lambda: self._library.explain(line, wanted))
        return self.shown(places.title(record, wanted), parts)

    def assignments(self) -> Any:
        """Who is where, to keep."""
        line, _ = self._asked()
        return _attached(downloads.assignments(self._studio.record(line)), "assignments.csv", "text/csv")

    def model(self) -> Any:
        """The model of a cluster or a client, to keep."""
        from flask import request

        line, words = self._asked()
        form = request.args.get("format", "safetensors")
        who, result = words.get("client"), self._library.result(line)
        data = downloads.model_archive(result, form, words.get("cluster") if who is None else None, who)
        name = f"cluster-{words.get('cluster', 0)}" if who is None else f"client-{who}"
        return _attached(data, f"{name}-{form}.zip", "application/zip")

    def card(self) -> Any:
        """The card of a cluster's model, to keep."""
        line, words = self._asked()
        wanted = words.get("cluster", 0)
        return _attached(model_card(self._library.result(line), wanted), f"cluster-{wanted}.md", "text/markdown")

    def shown(self, title: str, parts: Iterable[str]) -> Any:
        """A page."""
        from flask import Response

        directory = escape(str(self._runs.directory))
        text = PAGE.format(title=escape(title), directory=directory, body="".join(parts))
        return Response(text, mimetype="text/html")

    def _asked(self) -> tuple[Line, dict[str, int]]:
        """The run of the address, and the numbers beside it."""
        from flask import request

        key = request.args.get("run", "")
        line = self._runs.look().lines.get(key)
        if line is None:
            raise CoterieError(f"There is no run {key[:200]!r} here.", code="run-not-found")
        given = {name: request.args[name] for name in ("cluster", "client") if name in request.args}
        for name, text in given.items():
            if not text.isdecimal() or len(text) > 9:
                raise CoterieError(f"{name}: expected a number, not {text[:200]!r}", code="option-invalid")
        return line, {name: int(text) for name, text in given.items()}


def _attached(data: str | bytes, name: str, kind: str) -> Any:
    from flask import Response

    return Response(data, mimetype=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def _told(view: Callable[[], Any], shown: Callable[[str, Iterable[str]], Any]) -> Callable[[], Any]:
    """What cannot be shown is said in words."""

    def answer() -> Any:
        try:
            return view()
        except CoterieError as error:
            page = shown("Not found", [f'<p class="problem">{escape(str(error))}</p>'])
            page.status_code = 404
            return page

    return answer
