"""The parts of the page that are no figures: tables, key figures, a run's head. Everything from files is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.view.figures_cost import in_bytes, missing_reasons
from coterie.view.figures_style import percent
from coterie.view.ranking import Spread, Standing
from coterie.view.record import RunRecord
from coterie.view.tables import Clients

WORST = 10  # clients listed
REASONS = 20
NAME = 120  # characters of a name or a reason


@dataclass(frozen=True)
class Column:
    """Of a table."""

    name: str
    number: bool = False


def text(value: object, most: int = 4000) -> str:
    """A value from a file as text in a page."""
    line = str(value)
    return html.escape(line if len(line) <= most else line[: most - 1] + "…")


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """A table; its cells are HTML already."""
    kind = ' class="number"'
    head = "".join(f'<th scope="col"{kind * c.number}>{text(c.name)}</th>' for c in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{kind * c.number}>{v}</td>" for c, v in zip(columns, row, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{text(caption)}"><table><caption>{text(caption)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def status(record: RunRecord) -> str:
    """Its status as a badge."""
    return f'<span class="status {record.status}">{record.status}</span>'


def headline(record: RunRecord) -> str:
    """What the run is, in a few lines."""
    facts = [f"seed {record.seed}" if record.seed is not None else "", record.started or "", str(record.path)]
    lines = [f'<p>{status(record)} <span class="soft">{text(" · ".join(filter(None, facts)))}</span></p>']
    if record.problem:
        lines.append(f'<p class="problem">{text(record.problem[0].upper() + record.problem[1:])}.</p>')
    if record.data:
        lines.append(f'<p class="soft">{text(record.data)}</p>')
    return "".join(lines)


def key_figures(record: RunRecord) -> str:
    """The numbers that are looked for first."""
    curve = record.curve
    found: list[tuple[str, str | None]] = [
        ("accuracy", shown(curve.last("accuracy"), percent)),
        ("macro-F1", shown(curve.last("macro_f1"), percent)),
        ("loss", shown(curve.last("loss"), "{:.4g}".format) if record.regression else None),
        ("clusters", shown(curve.last("clusters"), "{:.0f}".format)),
        ("ARI", shown(curve.last("ari"), "{:.2f}".format)),
        ("rounds", rounds(record) if record.rounds_done else None),
        ("clients", clients(record)),
        ("seconds", f"{record.seconds:,.1f}" if record.seconds else None),
        ("sent to clients", _total(curve.bytes_down)),
        ("sent back", _total(curve.bytes_up)),
        ("missing answers", f"{len(curve.missing):,}" if curve.missing else None),
        ("newcomers", _newcomers(record.newcomers)),
    ]
    boxes = (f"<div><dt>{name}</dt><dd>{text(value)}</dd></div>" for name, value in found if value is not None)
    return f'<dl class="key">{"".join(boxes)}</dl>'


def shown(value: float | None, how: object) -> str | None:
    """A number in its form, or nothing."""
    return how(value) if value is not None and callable(how) else None


def rounds(record: RunRecord) -> str:
    """30, or 12 of 30"""
    wanted = record.rounds_wanted
    return str(record.rounds_done) if wanted in (None, record.rounds_done) else f"{record.rounds_done} of {wanted}"


def clients(record: RunRecord) -> str | None:
    """How many were evaluated last."""
    if record.clients is not None:
        return f"{len(record.clients.ids):,}"
    return f"{sum(record.curve.last_sizes):,}" if record.curve.last_sizes else None


def _total(column: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str | None:
    total = float(np.nansum(column))
    return in_bytes(total) if total else None


def _newcomers(found: Clients | None) -> str | None:
    if found is None:
        return None
    there = found.accuracy[~np.isnan(found.accuracy)]
    return f"{len(found.ids)}, {percent(float(there.mean()))}" if len(there) else str(len(found.ids))


def reasons(record: RunRecord) -> str:
    """Why clients were missing, where any were."""
    found = missing_reasons(record)
    if not found:
        return ""
    columns = [Column("reason"), Column("times", True), Column("clients", True), Column("first")]
    rows = [
        [text(r.reason, NAME), f"{r.times:,}", f"{r.clients:,}", f"client {r.first_client} in round {r.first_round}"]
        for r in found[:REASONS]
    ]
    more = f"; {len(found) - REASONS} rarer reasons are left out" if len(found) > REASONS else ""
    return table(f"Why clients were missing{more}", columns, rows)


def worst(record: RunRecord) -> str:
    """The clients that fare worst, with their clusters."""
    found = record.clients
    if found is None:
        return ""
    scores = -found.loss if record.regression else found.accuracy
    order = np.argsort(scores, kind="stable")
    order = order[~np.isnan(scores[order])][:WORST]
    hidden = found.hidden
    columns = [
        Column("client"),
        Column("found cluster", True),
        *([Column("hidden", True)] if hidden is not None else []),
    ]
    columns += [Column("test samples", True), Column("loss", True)]
    columns += [] if record.regression else [Column("accuracy", True), Column("macro-F1", True)]
    rows = []
    for i in order.tolist():
        row = [text(found.names[i], NAME), str(found.cluster[i]), *([str(hidden[i])] if hidden is not None else [])]
        row += [_cell(found.samples[i], "{:.0f}".format), _cell(found.loss[i], "{:.4g}".format)]
        row += [] if record.regression else [_cell(found.accuracy[i], percent), _cell(found.macro_f1[i], percent)]
        rows.append(row)
    return table(f"The {len(rows)} clients that fare worst", columns, rows) if rows else ""


def _cell(value: float, how: object) -> str:
    return text(shown(None if np.isnan(value) else float(value), how) or "-")


def overview(records: Sequence[RunRecord]) -> str:
    """A line per run."""
    columns = [Column("run"), Column("status"), Column("method"), Column("seed", True), Column("rounds", True)]
    columns += [Column("accuracy", True), Column("macro-F1", True), Column("loss", True), Column("ARI", True)]
    forms = (("accuracy", percent), ("macro_f1", percent), ("loss", "{:.4g}".format), ("ari", "{:.2f}".format))
    rows = [
        [
            text(r.name, NAME) + (f'<br><span class="problem">{text(r.problem)}</span>' if r.problem else ""),
            status(r),
            text(r.method, NAME),
            "-" if r.seed is None else str(r.seed),
            rounds(r),
            *(text(shown(r.curve.last(column), how) or "-") for column, how in forms),
        ]
        for r in records
    ]
    return table("The runs", columns, rows)


def standings(found: Sequence[Standing]) -> str:
    """The ranking as a table."""
    several = any(s.data for s in found)
    columns = [*([Column("data")] if several else []), Column("configuration"), Column("runs", True)]
    columns += [Column("accuracy", True), Column("macro-F1", True)]
    columns += [Column("ARI", True), Column("loss", True), Column("mean rank", True), Column("p", True)]
    columns.append(Column("against the best"))
    rows = [
        [
            *([text(s.data, NAME)] if several else []),
            text(s.label, NAME),
            str(s.runs),
            _spread(s.accuracy, 100, 1),
            _spread(s.macro_f1, 100, 1),
            _spread(s.ari, 1, 2),
            _spread(s.loss, 1, 3),
            "-" if s.rank is None else f"{s.rank:.2f}",
            "-" if s.p is None else f"{s.p:.2g}",
            text(s.verdict),
        ]
        for s in found
    ]
    each = ", data set by data set" if several else ""
    return table(
        f"Mean ± standard deviation over seeds (accuracy and macro-F1 in %), best first{each}; p is two-sided and "
        "corrected by Holm's method for the number of comparisons",
        columns,
        rows,
    )


def _spread(of: Spread | None, scale: int, digits: int) -> str:
    if of is None:
        return "-"
    return f"{scale * of.mean:.{digits}f}" + (f" ± {scale * of.std:.{digits}f}" if of.std is not None else "")
