"""Everything that was reproduced as one self-contained HTML page, and as Markdown with pictures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.core.files import write_durably, writing
from coterie.tools.report.export import Drawing, draw_figures
from papers.cell import Checked, Table
from papers.figures import Drawn, draw
from papers.results import Results
from papers.show import MARKS, difference, markdown, not_run, paper, seeds, tolerances
from papers.standing import Line, Standing, ours, standing
from papers.tables import TABLES

STYLE = """
:root { color-scheme: light; --line: #d5d9de; --soft: #5c6670; --good: #00694b; --far: #9a4a00; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1100px; padding: 1rem; }
body { color: #14181c; background: #fff; }
h1 { font-size: 1.7rem; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .soft { color: var(--soft); font-size: .92rem; }
.agrees, .holds { color: var(--good); font-weight: 600; }
.higher, .lower, .broken { color: var(--far); font-weight: 600; }
td.why { text-align: left; white-space: normal; }
code { background: #f1f3f5; padding: .1rem .3rem; border-radius: 3px; } figure { margin: 1.5rem 0; }
"""


def write(results: Results, docs: Path) -> list[Path]:
    """results/report.html, and results.md with its pictures in the documentation."""
    every = [standing(table, results) for table in TABLES]
    standings = [s for s in every if s.done]
    figures = draw(results)
    page = results.root / "report.html"
    _put(page, render(standings, figures))
    own = dict(found for table in TABLES for found in own_pages(table, results))
    for file, contents in own.items():
        _put(docs / file, contents)
    text, folder = docs / "results.md", docs / "pictures"
    there = [(d.title, d.remark, folder / f"{d.name}.png") for d in figures if (folder / f"{d.name}.png").is_file()]
    _put(text, markdown(every, there, docs))  # first: a browser may take minutes to draw, or never answer
    pictures = _pictures(figures, folder)
    _put(text, markdown(every, pictures, docs))
    return [page, text, *(docs / file for file in own), *(file for *_, file in pictures)]


def own_pages(table: Table, results: Results) -> list[tuple[str, str]]:
    """Pages of the documentation that a table has for itself, by name; they say what is of an earlier revision."""
    if table.own_page is None:
        return []
    pages = table.own_page.pages(results)
    file = table.own_page.file
    shared = [one for one in TABLES if one is not table and one.own_page is not None and one.own_page.file == file]
    runs = [run for one in (table, *shared) for run in one.runs()]
    earlier = dict.fromkeys(run.config["method"]["name"] for run in runs if results.earlier(run))
    if not earlier:
        return pages
    note = f"Not run again since a correction of the method changed its results: {', '.join(earlier)}.\n"
    return [(name, f"{text}\n{note}") for name, text in pages]


def render(standings: Sequence[Standing], figures: Sequence[Drawn]) -> str:
    """The page."""
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Coterie: the papers' numbers and ours</title><style>{STYLE}</style></head><body>",
        "<h1>The papers' numbers and ours</h1>",
        "<p>A cell <em>agrees</em> when it is within the table's tolerance of the printed number. Misses stay in.</p>",
        _overview(standings),
        *(_table(found) for found in standings if found.table.own_page is None),
        "<h2 id='figures'>Figures</h2>" if figures else "",
    ]
    for i, drawn in enumerate(figures):
        chart = drawn.figure.to_html(full_html=False, include_plotlyjs=i == 0, config={"displaylogo": False})
        caption = f"<figcaption><b>{escape(drawn.title)}</b> {escape(drawn.remark)}</figcaption>"
        parts.append(f"<figure id='{drawn.name}' aria-label='{escape(drawn.remark)}'>{chart}{caption}</figure>")
    return "\n".join([*parts, "</body></html>\n"])


def _overview(standings: Sequence[Standing]) -> str:
    rows = []
    for found in standings:
        own = found.table.own_page
        link = f"<a href='#{found.table.name}'>{found.table.name}</a>" if own is None else f"{found.table.name}"
        cells = (
            *(link, f"{found.done} of {len(found.lines)}", found.agreed, found.claimed),
            str(found.of_one_seed),
        )
        why = f"<td class='why'>{escape(found.in_a_line)}</td>"
        rows.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + why + "</tr>")
    names = ("table", "cells run", "agree", "claims that hold", "of one seed", "in a line")
    head = "".join(f"<th scope='col'>{h}</th>" for h in names)
    return f"<div class='scroll'><table><tr>{head}</tr>{''.join(rows)}</table></div>"


def _table(found: Standing) -> str:
    table, unit = found.table, found.table.unit
    head = "".join(f"<th scope='col'>{h}</th>" for h in ("cell", "paper", "ours", "difference", "seeds", "verdict"))
    body = "".join(_row(line, unit) for line in found.lines if line.found)
    missing = not_run(found)
    notes = dict.fromkeys(line.cell.note for line in found.lines if line.found and line.cell.note)
    claims = "".join(_claim(c) for c in found.claims)
    return "\n".join(
        (
            f"<h2 id='{table.name}'>{table.name}</h2>",
            f"<p>{escape(table.title)}{f' ({unit})' if unit else ''}. {escape(table.paper)}.</p>",
            f"<p class='soft'>{escape(table.protocol)} Tolerance: {tolerances(found)}.</p>",
            f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>",
            f"<p class='soft'>Not run yet: {escape(missing)}.</p>" if missing else "",
            "".join(f"<p class='soft'>{escape(note)}.</p>" for note in notes),
            f"<ul>{claims}</ul>" if claims else "",
            f"<p><code>python -m papers {table.name}</code></p>",
        )
    )


def _claim(claim: Checked) -> str:
    place = f" [{escape(claim.place)}]" if claim.place else ""
    how = {True: "holds", False: "broken", None: "soft"}[claim.holds]
    mark = f"<span class='{how}'>{MARKS[claim.holds]}</span>"
    return f"<li>{escape(claim.text)}{place}: {mark} {escape(claim.note)}</li>"


def _row(line: Line, unit: str) -> str:
    assert line.found is not None
    cells = (escape(line.cell.name), paper(line, unit), ours(line, unit), difference(line, unit), seeds(line))
    word = f"<td class='{line.verdict.split(' ')[0]}'>{line.verdict}</td>"
    title = f" title='{escape(line.cell.note)}'" if line.cell.note else ""
    return f"<tr{title}>" + "".join(f"<td>{c}</td>" for c in cells) + word + "</tr>"


def _pictures(figures: Sequence[Drawn], folder: Path) -> list[tuple[str, str, Path]]:
    """The figures as files, if a browser is found to draw them; otherwise the existing files."""
    drawings = [Drawing(folder / f"{drawn.name}.png", drawn.figure, width=1000) for drawn in figures]
    try:
        draw_figures(drawings, lambda text: print(text, file=sys.stderr))
    except CoterieError as error:  # the page has the figures; the Markdown keeps what was drawn before
        print(f"pictures: {error}", file=sys.stderr)
    files = ((drawn.title, drawn.remark, drawing.path) for drawn, drawing in zip(figures, drawings, strict=True))
    return [(title, remark, file) for title, remark, file in files if file.is_file()]


def _put(path: Path, text: str) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, text)
