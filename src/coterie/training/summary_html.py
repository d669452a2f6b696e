"""A result as a notebook shows it: summary, clusters and a curve, in one piece of HTML that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from coterie.core.text import short
from coterie.training.score_text import ERRORS, WORST, cluster_scores, errors, own_values, percent, worst

if TYPE_CHECKING:
    from coterie.core.metrics import Summary
    from coterie.training.result import Result

ROWS = 12  # clusters in the table
WIDTH, HEIGHT, LEFT, BELOW = 380, 170, 46, 24  # of the curve; space for the numbers left of it and below
CELL = 'style="text-align:right;padding:2px 10px"'


def html(result: Result[Any]) -> str:
    """Everything escaped, the colours the notebook's own."""
    title = escape(f"{type(result.method).__name__}: {result.known.describe()}")
    parts = [_summary(result), _clusters(result), _curve(result)]
    columns = "".join(f'<div style="margin:4px 24px 4px 0">{part}</div>' for part in parts if part)
    beside = "display:flex;flex-wrap:wrap;align-items:flex-start"
    warned = "".join(f'<p style="color:#b35900">warning: {escape(text)}</p>' for text in result.warnings)
    return f'<div><p><b>{title}</b></p>{warned}<div style="{beside}">{columns}</div></div>'


def _summary(result: Result[Any]) -> str:
    found = result.summary
    rows = [("loss", _number(found.loss, 4))]
    if found.mae is not None:
        rows = list(zip(ERRORS, errors(found), strict=True))
    own = tuple(found.scores or ())
    rows += list(zip(own, own_values(found, own), strict=True))
    if found.accuracy is not None:
        rows = [("accuracy", percent(found.accuracy)), ("macro-F1", percent(found.macro_f1)), *rows]
    if found.worst_decile is not None:  # of which runs of before say nothing
        rows.append((WORST, worst(found)))
    rows.append(("clusters", str(found.clusters)))
    if found.ari is not None:
        rows += [("ARI", _number(found.ari, 2)), ("NMI", _number(found.nmi, 2))]
    if found.mixture_error is not None:
        rows.append(("mixture error", _number(found.mixture_error, 3)))
    held = next((event.validation for event in reversed(result.history) if event.validation is not None), None)
    if held is not None:
        last = ("loss", _number(held.loss, 4)) if held.accuracy is None else ("accuracy", percent(held.accuracy))
        rows.append((f"validation {last[0]}", last[1]))
    if result.newcomers is not None:
        new = result.newcomers.summary
        rows.append(("newcomers", _number(new.loss, 4) if new.accuracy is None else percent(new.accuracy)))
    rounds = result.history[-1].round if result.history else result.settings.rounds  # fewer where it stopped early
    rows += [("rounds", str(rounds)), ("seconds", f"{result.seconds:.1f}")]
    if result.run_dir is not None:
        rows.append(("directory", str(result.run_dir)))
    return _table([], rows)


def _clusters(result: Result[Any]) -> str:
    found = cluster_scores(result.clients)
    if not found:
        return ""
    regression = result.accuracy is None
    shown = sorted(sorted(found, key=lambda row: -row.clients)[:ROWS], key=lambda row: row.cluster)
    rows = [
        (str(row.cluster), str(row.clients), _number(row.loss, 4) if regression else percent(row.accuracy))
        for row in shown
    ]
    if len(shown) < len(found):
        rest = sum(row.clients for row in found) - sum(row.clients for row in shown)
        rows.append((f"{len(found) - len(shown)} more", str(rest), ""))
    return _table(["cluster", "clients", "loss" if regression else "accuracy"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "<tr>" + "".join(f"<th {CELL}>{escape(name)}</th>" for name in head) + "</tr>" if head else ""
    body = "".join("<tr>" + "".join(f"<td {CELL}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None or not math.isfinite(value) else short(value, digits)


def _curve(result: Result[Any]) -> str:
    """The score of every evaluated round of this call; nothing where there are fewer than two.

    Where the run validates, rounds have validation scores, and the test score is a point at the end.
    """
    regression = result.accuracy is None
    tested = _points(((event.round, event.summary) for event in result.history), regression)
    held = _points(((event.round, event.validation) for event in result.history), regression)
    known, points = (held, tested) if held else (tested, [])
    if len(known) < 2:
        return ""
    rounds, values = [round_ for round_, _ in known], [value for _, value in (*known, *points)]
    low, high = (0.0, max(values) or 1.0) if regression else (0.0, 1.0)
    log = (
        regression and min(values) > 0 and max(values) > 1e3 * min(values)
    )  # else all but the largest are on the floor
    if log:
        low = min(values)

    def x(round_: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * (round_ - rounds[0]) / (rounds[-1] - rounds[0])

    def y(value: float) -> float:
        if log:
            return 8 + (HEIGHT - BELOW - 8) * math.log(high / value) / math.log(high / low)
        return 8 + (HEIGHT - BELOW - 8) * (high - value) / (high - low)

    measure, middle = (
        "loss" if regression else "accuracy",
        math.sqrt(low) * math.sqrt(high) if log else (low + high) / 2,
    )
    name = f"validation {measure}" if held else measure
    line = " ".join(f"{x(round_):.1f},{y(value):.1f}" for round_, value in known)
    grid = "".join(_level(y(level), f"{level:.3g}" if regression else f"{level:.0%}") for level in (low, middle, high))
    last = f"{name} over rounds {rounds[0]} to {rounds[-1]}, last {known[-1][1]:.4g}"
    last += "".join(f"; test {measure} {value:.4g}" for _, value in points)
    dots = "".join(
        f'<circle cx="{x(round_):.1f}" cy="{y(value):.1f}" r="4" fill="#d55e00"/>' for round_, value in points
    )
    below = f"{name} by round" + (", test as a dot" if points else "")
    text = 'fill="currentColor" font-size="11" font-family="sans-serif"'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape(last)}">'
        f'{grid}<polyline points="{line}" fill="none" stroke="#0072b2" stroke-width="2"/>{dots}'
        f'<text x="{LEFT}" y="{HEIGHT - 8}" {text}>{rounds[0]}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 8}" text-anchor="end" {text}>{rounds[-1]}</text>'
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle" {text}>{below}</text></svg>'
    )


def _points(seen: Iterable[tuple[int, Summary | None]], regression: bool) -> list[tuple[int, float]]:
    """The rounds that have a finite score, with it."""
    found = [(round_, of.loss if regression else of.accuracy) for round_, of in seen if of is not None]
    return [(round_, value) for round_, value in found if value is not None and math.isfinite(value)]


def _level(y: float, label: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" stroke-opacity="0.2"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="currentColor" font-size="11" '
        f'font-family="sans-serif">{label}</text>'
    )
