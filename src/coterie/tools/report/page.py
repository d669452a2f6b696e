"""One HTML file about a run or several. It asks nothing of a network: scripts, styles and data are all inside."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Any

import yaml

from coterie.tools.report import page_parts as parts
from coterie.tools.report.figures import KINDS, Kind, Picture, of_run, of_runs
from coterie.tools.report.figures_models import client_similarity, model_map
from coterie.tools.report.figures_style import plotly, template
from coterie.tools.report.page_parts import text
from coterie.tools.report.ranking import group, rank
from coterie.tools.report.record import RunRecord

DETAILED = 12  # of several runs, so many have their own figures in the file
WIDE = ("sizes", "moves", "missing", "dendrogram")  # figures that are as wide as the page
# The page may not load anything from anywhere, whatever a file smuggles into it.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
SEVERAL_MAPPED, SEVERAL_PAIRS = 500, 100  # clients drawn of each of several runs, to keep the file small


def render(records: Sequence[RunRecord], say: Callable[[str], None] = lambda _: None) -> str:
    """The page. `say` hears which run is being drawn."""
    plotly()
    page = _Page(say)
    if len(records) == 1:
        title, body = page.one(records[0])
    else:
        title, body = page.several(records)
    return _document(title, page.links, body, page.data())


def single(title: str, about: str, picture: Picture) -> str:
    """A page in the same style with one figure."""
    page = _Page(lambda _: None)
    body = f'<header><h1>{text(title, 200)}</h1><p class="soft">{text(about)}</p></header>{page.chart("one", picture)}'
    return _document(title, [], body, page.data())


@dataclass(frozen=True, eq=False)
class Part:
    """A section of a page: its heading, HTML, and figures below it."""

    heading: str
    inner: str
    pictures: Sequence[Picture] = ()


def document(title: str, header: str, parts: Sequence[Part]) -> str:
    """A page in the same style from sections that were made elsewhere."""
    page = _Page(lambda _: None)
    body = [f"<header>{header}</header>"]
    for part in parts:
        anchor = part.heading.lower().replace(" ", "-")
        charts = "".join(page.chart(anchor, picture) for picture in part.pictures)
        inner = part.inner + (f'<div class="charts">{charts}</div>' if charts else "")
        body.append(page.section(part.heading, inner, anchor, link=True))
    return _document(title, page.links, "".join(body), page.data())


class _Page:
    """Collects figures and links while the sections are written."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.figures: dict[str, Any] = {}
        self.links: list[tuple[str, str]] = []
        self._say = say

    def data(self) -> dict[str, Any]:
        """What the page's script draws."""
        return {"templates": {theme: _template(theme) for theme in ("light", "dark")}, "figures": self.figures}

    def one(self, record: RunRecord) -> tuple[str, str]:
        title = _title(record)
        body = f"<header><h1>{text(title, 200)}</h1>{parts.headline(record)}{parts.key_figures(record)}</header>"
        return title, body + self._sections(record, "run", KINDS, link=True)

    def several(self, records: Sequence[RunRecord]) -> tuple[str, str]:
        groups = group(records)
        title = f"{len(records)} runs, {len(groups)} configuration{'s' * (len(groups) != 1)}"
        failed = sum(record.status == "failed" for record in records)
        title += f", {failed} failed" if failed else ""
        body = [f"<header><h1>{title}</h1></header>"]
        if groups:
            body.append(self.section("Ranking", parts.standings(rank(groups)), "ranking", link=True))
        charts = "".join(self.chart("all", picture) for picture in of_runs(records))
        if charts:
            body.append(self.section("Comparison", f'<div class="charts">{charts}</div>', "comparison", link=True))
        body.append(self.section("Runs", parts.overview(records), "runs", link=True))
        body += [self._folded(record, number) for number, record in enumerate(records[:DETAILED], 1)]
        if len(records) > DETAILED:
            left = f"The other {len(records) - DETAILED} runs have no figures of their own here: report fewer at once."
            body.append(f'<p class="soft">{left}</p>')
        return title, "".join(body)

    def _folded(self, record: RunRecord, number: int) -> str:
        """One of several runs: its figures are drawn when it is opened."""
        smaller = {"map": partial(model_map, most=SEVERAL_MAPPED)}
        smaller["clients-similarity"] = partial(client_similarity, most=SEVERAL_PAIRS)
        kinds = [replace(kind, draw=smaller.get(kind.name, kind.draw)) for kind in KINDS]
        return (
            f"<details><summary><strong>{text(record.name, 200)}</strong> {text(_title(record), 200)} "
            f"{parts.status(record)}</summary>{parts.headline(record)}{parts.key_figures(record)}"
            f"{self._sections(record, f'run{number}', kinds)}</details>"
        )

    def _sections(self, record: RunRecord, prefix: str, kinds: Sequence[Kind], link: bool = False) -> str:
        self._say(record.name)
        pictures = of_run(record, kinds=kinds)
        tables = {"Rounds": parts.reasons(record)}
        body = []
        for section in dict.fromkeys(kind.section for kind in kinds):
            charts = "".join(self.chart(prefix, picture) for picture in pictures if picture.section == section)
            if charts:
                inner = f'<div class="charts">{charts}</div>{tables.get(section, "")}'
                body.append(self.section(section, inner, f"{prefix}-{section.lower()}", link))
        clients = parts.worst(record)
        if clients:
            body.append(self.section("Clients", clients, f"{prefix}-clients", link))
        if not pictures:
            body.append("<p>No round was evaluated, so there is nothing to draw.</p>")
        if record.config:
            shown = f'<pre tabindex="0"><code>{text(_yaml(record), 50_000)}</code></pre>{_versions(record)}'
            body.append(self.section("Configuration", shown, f"{prefix}-configuration", link))
        return "".join(body)

    def section(self, heading: str, inner: str, anchor: str, link: bool) -> str:
        """A section, and a link to it at the top."""
        if link:
            self.links.append((anchor, heading))
        return f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{heading}</h2>{inner}</section>'

    def chart(self, prefix: str, picture: Picture) -> str:
        name = f"{prefix}-{picture.name}"
        figure = json.loads(picture.figure.to_json())
        for unneeded in ("template", "meta"):
            figure["layout"].pop(unneeded, None)
        self.figures[name] = figure
        title, wide = figure["layout"]["title"]["text"], ' class="wide"' if picture.name in WIDE else ""
        return (
            f'<figure{wide}><div class="chart" id="{name}" role="img" aria-label="{text(f"{title}. {picture.words}")}" '
            f'style="height:{figure["layout"]["height"]}px"></div><figcaption>{text(picture.words)}</figcaption></figure>'
        )


def _title(record: RunRecord) -> str:
    about = record.data.split(": ")[0]
    return f"{record.method} on {about}" if about else record.name if record.method == "unknown" else record.method


def _yaml(record: RunRecord) -> str:
    return yaml.safe_dump(dict(record.config), sort_keys=False, allow_unicode=True)


def _versions(record: RunRecord) -> str:
    found = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return f'<p class="soft">{text(found)}</p>' if found else ""


def _template(theme: Any) -> Any:
    return json.loads(json.dumps(template(theme).to_plotly_json()))


def _document(title: str, links: Sequence[tuple[str, str]], body: str, figures: Any) -> str:
    from plotly.offline import get_plotlyjs

    def own(name: str) -> str:
        return files("coterie.tools.report").joinpath(name).read_text(encoding="utf-8")

    # Within a script only "<" could end it.
    data = json.dumps(figures, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    items = "".join(f'<li><a href="#{anchor}">{text(name)}</a></li>' for anchor, name in links)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title, 200)} · Coterie</title>
<style>{own("page.css")}</style>
</head>
<body>
<nav aria-label="Sections"><ul>{items}</ul><button id="theme" type="button">Dark</button></nav>
<main>{body}</main>
<footer>Written by Coterie. Everything on this page is in this one file.</footer>
<script id="figures" type="application/json">{data}</script>
<script>{get_plotlyjs()}</script>
<script>{own("page.js")}</script>
</body>
</html>
"""
