"""The parts of the page that are no figures: tables, key figures, a run's head. Everything from files is escaped."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.text import short
from coterie.tools.report.fairness import NEEDS_LOCAL
from coterie.tools.report.figures_cost import Reason, in_bytes, missing_reasons
from coterie.tools.report.figures_style import percent
from coterie.tools.report.ranking import Spread, Standing
from coterie.tools.report.record import RunRecord
from coterie.tools.report.tables import Clients, Curve
from coterie.training.following import FOUND, mean_since, waits_after
from coterie.training.score_text import WORST as WORST_TENTH

# The numbers of a regression.
ERRORS = (("loss", "MSE"), ("rmse", "RMSE"), ("mae", "MAE"), ("r2", "R2"), ("constant", "MSE of a constant"))
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
    """A table; its cells are HTML already. On a narrow screen a row is a card, and cells carry their column's name."""
    kind = ' class="number"'
    head = "".join(f'<th scope="col" role="columnheader"{kind * c.number}>{text(c.name)}</th>' for c in columns)
    body = "".join(
        '<tr role="row">'
        + "".join(
            f'<td role="cell" data-label="{text(c.name)}"{kind * c.number}>{v}</td>'
            for c, v in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{text(caption)}"><table role="table"><caption>'
        f'{text(caption)}</caption><thead role="rowgroup"><tr role="row">{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table></div>'
    )


def status(record: RunRecord) -> str:
    """Its status as a badge."""
    return f'<span class="status {record.status}">{record.status}</span>'


def headline(record: RunRecord) -> str:
    """What the run is, in a few lines."""
    facts = [f"seed {record.seed}" if record.seed is not None else "", record.started or "", str(record.path)]
    lines = [f'<p>{status(record)} <span class="soft">{text(" · ".join(filter(None, facts)))}</span></p>']
    if record.problem:
        lines.append(f'<p class="problem">{text(_sentence(record.problem))}</p>')
    lines += [f'<p class="problem" role="alert">Warning: {text(found)}.</p>' for found in record.warnings]
    if record.attack:
        lines.append(f'<p class="problem">{text(_sentence(record.attack))}</p>')
    if record.data:
        lines.append(f'<p class="soft">{text(record.data)}</p>')
    return "".join(lines)


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def key_figures(record: RunRecord) -> str:
    """The numbers that are looked for first."""
    curve = record.curve
    found: list[tuple[str, str | None]] = [
        *(_scores(record, curve, "" if curve.validation is None else "test ")),
        *(_scores(record, curve.validation, "validation ") if curve.validation is not None else ()),
        (WORST_TENTH, shown(record.worst_decile, _form(record.regression))),
        ("clusters", shown(curve.latest("clusters"), "{:.0f}".format)),
        ("ARI", shown(curve.latest("ari"), "{:.2f}".format)),
        *_followed(record),
        ("rounds", rounds(record) if record.rounds_done else None),
        ("clients", clients(record)),
        ("seconds", f"{record.seconds:,.1f}" if record.seconds else None),
        ("sent to clients", _total(curve.bytes_down)),
        ("sent back", _total(curve.bytes_up)),
        ("missing answers", f"{len(curve.missing):,}" if curve.missing else None),
        ("newcomers", _newcomers(record.newcomers)),
        ("privacy spent (epsilon)", shown(curve.last("epsilon"), "{:.3g}".format)),
    ]
    boxes = (f"<div><dt>{name}</dt><dd>{text(value)}</dd></div>" for name, value in found if value is not None)
    return f'<dl class="key">{"".join(boxes)}</dl>'


def _followed(record: RunRecord) -> list[tuple[str, str | None]]:
    """How the run went after its data changed."""
    curve, changes = record.curve.by_round, [change for change in record.changes if change <= record.rounds_done]
    if not changes:
        return []
    name, values, form = (
        ("loss", curve.loss, "{:.4g}".format) if record.regression else ("accuracy", curve.accuracy, percent)
    )
    found: list[tuple[str, str | None]] = [
        (f"mean {name} since the data changed", shown(mean_since(changes[0], curve.round, values), form))
    ]
    if curve.last("ari") is not None:
        waits = waits_after(changes, curve.round, curve.ari, record.rounds_done)
        said = ", ".join("never" if wait is None else str(wait) for wait in waits)
        found.append((f"rounds from a change to an ARI of {FOUND}", said))
    return found


def _scores(record: RunRecord, curve: Curve, of: str) -> list[tuple[str, str | None]]:
    """The last scores on one kind of samples."""
    errors = ERRORS if record.regression else ()
    return [
        (f"{of}accuracy", shown(curve.last("accuracy"), percent)),
        (f"{of}macro-F1", shown(curve.last("macro_f1"), percent)),
        *((f"{of}{name}", shown(curve.last(key), "{:.4g}".format)) for key, name in errors),
    ]


def _form(regression: bool) -> Callable[[float], str]:
    """How a client's score is written: a share, or a loss."""
    return "{:.4g}".format if regression else percent


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
    rows = [[text(r.reason, NAME), f"{r.times:,}", f"{r.clients:,}", _first(record, r)] for r in found[:REASONS]]
    more = f"; {len(found) - REASONS} rarer reasons are left out" if len(found) > REASONS else ""
    return table(f"Why clients were missing{more}", columns, rows)


def _first(record: RunRecord, reason: Reason) -> str:
    return text(f"{record.who(reason.first_client)} in round {reason.first_round}", NAME)


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
    columns.append(Column(f"{found.scored_on} samples", True))
    errors = [(key, name) for key, name in ERRORS if not np.isnan(getattr(found, key)).all()]
    if record.regression:
        columns += [Column(name, True) for _, name in errors]
    else:
        columns += [Column("loss", True), Column("accuracy", True), Column("macro-F1", True)]
    rows = []
    for i in order.tolist():
        row = [text(found.names[i], NAME), str(found.cluster[i]), *([str(hidden[i])] if hidden is not None else [])]
        row.append(_cell(found.samples[i], "{:.0f}".format))
        if record.regression:
            row += [_cell(getattr(found, key)[i], "{:.4g}".format) for key, _ in errors]
        else:
            row += [_cell(found.loss[i], "{:.4g}".format)]
            row += [_cell(found.accuracy[i], percent), _cell(found.macro_f1[i], percent)]
        rows.append(row)
    of = "" if found.scored_on == "test" else f", on {found.scored_on} samples"
    return table(f"The {len(rows)} clients that fare worst{of}", columns, rows) if rows else ""


def _cell(value: float, how: object) -> str:
    return text(shown(None if np.isnan(value) else float(value), how) or "-")


def _troubles(record: RunRecord) -> list[str]:
    """What is wrong with a run, in words."""
    return [*([record.problem] if record.problem else []), *(f"warning: {found}" for found in record.warnings)]


def overview(records: Sequence[RunRecord]) -> str:
    """A line per run."""
    columns = [Column("run"), Column("status"), Column("method"), Column("seed", True), Column("rounds", True)]
    columns += [Column("accuracy", True), Column("macro-F1", True), Column("loss", True), Column("ARI", True)]
    columns += [Column(WORST_TENTH, True)]
    forms = (("accuracy", percent), ("macro_f1", percent), ("loss", "{:.4g}".format), ("ari", "{:.2f}".format))
    held = [r.curve.validation for r in records]  # on validation samples, where runs validate
    also = [(key, how) for key, how in forms[::2] if any(c is not None and c.last(key) is not None for c in held)]
    columns += [Column(f"validation {key}", True) for key, _ in also]
    rows = [
        [
            text(r.name, NAME) + "".join(f'<br><span class="problem">{text(said)}</span>' for said in _troubles(r)),
            status(r),
            text(r.method, NAME),
            "-" if r.seed is None else str(r.seed),
            rounds(r),
            *(text(shown(r.curve.last(column), how) or "-") for column, how in forms),
            text(shown(r.worst_decile, _form(r.regression)) or "-"),
            *(text((shown(c.last(column), how) if c is not None else None) or "-") for column, how in also),
        ]
        for r, c in zip(records, held, strict=True)
    ]
    return table("The runs", columns, rows)


def standings(found: Sequence[Standing]) -> str:
    """The ranking as a table."""
    several = any(s.data for s in found)
    columns = [*([Column("data")] if several else []), Column("configuration"), Column("runs", True)]
    columns += [Column("accuracy", True), Column("macro-F1", True)]
    columns += [Column("ARI", True), Column("loss", True)]
    columns += [Column(WORST_TENTH, True), Column("gain over local", True), Column("worse than local", True)]
    validated = any(s.validation_accuracy for s in found), any(s.validation_loss for s in found)
    names = ("validation accuracy", "validation loss")
    columns += [Column(name, True) for name, some in zip(names, validated, strict=True) if some]
    columns += [Column("mean rank", True), Column("p", True)]
    columns.append(Column("against the best"))
    rows = [
        [
            *([text(s.data, NAME)] if several else []),
            text(s.label, NAME),
            s.counted,
            _spread(s.accuracy, 100, 1),
            _spread(s.macro_f1, 100, 1),
            _spread(s.ari, 1, 2),
            _spread(s.loss, 1, 3),
            *_fair(s),
            *([_spread(s.validation_accuracy, 100, 1)] if validated[0] else []),
            *([_spread(s.validation_loss, 1, 3)] if validated[1] else []),
            "-" if s.rank is None else f"{s.rank:.2f}",
            "-" if s.p is None else f"{s.p:.2g}",
            text(s.verdict),
        ]
        for s in found
    ]
    each = ", data set by data set" if several else ""
    return table(
        f"Mean ± standard deviation over seeds (accuracy and macro-F1 in %), best first{each}; p is two-sided and "
        "corrected by Holm's method for the number of comparisons. Worst 10 %: the mean over the worst tenth of "
        f"clients. {NEEDS_LOCAL}",
        columns,
        rows,
    )


def _fair(s: Standing) -> list[str]:
    """The worst clients in % or, for regression, their loss; clients beside themselves alone."""
    scale, digits = (1, 3) if s.regression else (100, 1)
    return [_spread(s.worst_decile, scale, digits), _spread(s.gain, scale, digits), _spread(s.worse, 100, 1)]


def _spread(of: Spread | None, scale: int, digits: int) -> str:
    if of is None:
        return "-"
    return short(scale * of.mean, digits) + (f" ± {short(scale * of.std, digits)}" if of.std is not None else "")
