"""Pages besides the live one, made when they are asked for: of a cluster, of a client, and files to download."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.network.load_any import load
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
    from flask import Response, request

    library = Library()

    def asked() -> tuple[Line, dict[str, int]]:
        """The run of the address, and the numbers beside it."""
        key = request.args.get("run", "")
        line = runs.look().lines.get(key)
        if line is None:
            raise CoterieError(f"There is no run {key[:200]!r} here.", code="run-not-found")
        given = {name: request.args[name] for name in ("cluster", "client") if name in request.args}
        for name, text in given.items():
            if not text.isdecimal() or len(text) > 9:
                raise CoterieError(f"{name}: expected a number, not {text[:200]!r}", code="option-invalid")
        return line, {name: int(text) for name, text in given.items()}

    def cluster() -> Any:
        line, words = asked()
        wanted = words.get("cluster", 0)
        card = lambda: model_card(library.result(line), wanted, look_at_data=False)  # noqa: E731
        return shown(f"Cluster {wanted}", places.cluster_page(line.key, studio.record(line), wanted, card))

    def client() -> Any:
        line, words = asked()
        wanted = words.get("client", 0)
        record = studio.record(line)
        parts = places.client_page(line.key, record, wanted, lambda: library.explain(line, wanted))
        return shown(places.title(record, wanted), parts)

    def shown(title: str, parts: Iterable[str]) -> Any:
        text = PAGE.format(title=escape(title), directory=escape(str(runs.directory)), body="".join(parts))
        return Response(text, mimetype="text/html")

    def assignments() -> Any:
        line, _ = asked()
        return attached(downloads.assignments(studio.record(line)), "assignments.csv", "text/csv")

    def model() -> Any:
        line, words = asked()
        form = request.args.get("format", "safetensors")
        who = words.get("client")
        data = downloads.model_archive(library.result(line), form, words.get("cluster") if who is None else None, who)
        name = f"cluster-{words.get('cluster', 0)}" if who is None else f"client-{who}"
        return attached(data, f"{name}-{form}.zip", "application/zip")

    def card() -> Any:
        line, words = asked()
        wanted = words.get("cluster", 0)
        return attached(model_card(library.result(line), wanted), f"cluster-{wanted}.md", "text/markdown")

    def attached(data: str | bytes, name: str, kind: str) -> Any:
        return Response(data, mimetype=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})

    made = {"/cluster": cluster, "/client": client, "/download/assignments.csv": assignments}
    made |= {"/download/model.zip": model, "/download/card.md": card}
    for path, view in made.items():
        app.server.add_url_rule(path, f"coterie{path}", _told(view, shown))


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
