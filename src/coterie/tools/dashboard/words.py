"""What the page says in words: about the selected run, how several rank, configurations, and how to begin."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import html

from coterie.tools.dashboard.places import address
from coterie.tools.dashboard.selection import MOST, Selection
from coterie.tools.report.fairness import NEEDS_LOCAL
from coterie.tools.report.ranking import Spread, Standing, flat
from coterie.tools.report.record import RunRecord
from coterie.tools.report.tables import Curve
from coterie.training.score_text import WORST

STATUS = {
    "running": "under way",
    "done": "done",
    "stopped": "stopped",
    "failed": "failed",
    "empty": "empty",
    "broken": "broken",
}
STEPS = 10  # announcements of a whole run
LINKED = 50  # clusters with a link
TOLD = 5  # names that are not there, before "and more"


def aria(**attributes: str) -> dict[str, Any]:
    """label="..." -> aria-label="...", which Python cannot spell."""
    return {f"aria-{name}": value for name, value in attributes.items()}


def how_to_begin(directory: Path) -> Any:
    """In place of a list without runs."""
    command = f"coterie run method.name=wecfl method.k=4 rounds=30 --out {shlex.quote(str(directory / 'first'))}"
    return [
        html.P("There are no runs here yet. Start one, and it appears on this page as it goes:"),
        html.Pre(html.Code(command), tabIndex="0", **aria(label="command")),
    ]


def complaints(selection: Selection) -> list[Any]:
    """What the address asked for and is not shown."""
    told = [html.P(f"There is no run {key!r} here.", className="problem") for key in selection.unknown[:TOLD]]
    if len(selection.unknown) > TOLD:
        told.append(html.P(f"Nor {len(selection.unknown) - TOLD} more.", className="problem"))
    if selection.left_out:
        told.append(
            html.P(f"{MOST} runs are shown together; {selection.left_out} more are left out.", className="soft")
        )
    return told


def about_run(key: str, record: RunRecord) -> list[Any]:
    """The heading of one run, and its numbers."""
    said: list[Any] = [html.H2([key, " ", _pill(record.status)])]
    if record.problem is not None:
        said.append(html.P(f"{STATUS[record.status].capitalize()}: {record.problem}", className="problem"))
    said += [html.P(f"Warning: {text}", className="problem") for text in record.warnings]
    if record.attack is not None:
        said.append(html.P(f"{record.attack[0].upper()}{record.attack[1:]}.", className="problem"))
    if not record.rounds_done:
        said.append(html.P("No round has been finished, so there is nothing to draw.", className="soft"))
    if record.data:
        said.append(html.P(record.data, className="soft"))
    curve = record.curve
    wanted = "" if record.rounds_wanted is None else f" / {record.rounds_wanted}"
    numbers = [
        ("method", record.method),
        ("seed", "-" if record.seed is None else str(record.seed)),
        ("rounds", f"{record.rounds_done}{wanted}"),
        *_scores(curve, "" if curve.validation is None else "test "),
        *(() if curve.validation is None else _scores(curve.validation, "validation ")),
        (WORST, _number(record.worst_decile, ".4g") if record.regression else _percent(record.worst_decile)),
        ("clusters", _number(curve.latest("clusters"), ".0f")),
        ("ARI", _number(curve.latest("ari"), ".2f")),
        ("seconds", f"{record.seconds:.1f}"),
        ("privacy spent (epsilon)", _number(curve.last("epsilon"), ".3g")),
    ]
    shown = [html.Div([html.Dt(name), html.Dd(value)]) for name, value in numbers if value]
    return [*said, html.Dl(shown, className="key"), *_places(key, record)]


def _places(key: str, record: RunRecord) -> list[Any]:
    """Links to the pages of the clusters, and to the table of all clients."""
    if record.clients is None:
        return []
    sizes = Counter(record.clients.cluster.tolist())
    links: list[Any] = []
    for cluster in sorted(sizes)[:LINKED]:
        many = f"cluster {cluster} ({sizes[cluster]} client{'s' * (sizes[cluster] != 1)})"
        links += [html.A(many, href=address("cluster", key, cluster=cluster)), " "]
    more = [f"and {len(sizes) - LINKED} more "] if len(sizes) > LINKED else []
    table = html.A("assignments.csv", href=address("download/assignments.csv", key), className="button", download="")
    return [html.P(["Pages: ", *links, *more, table], className="downloads")]


def _scores(curve: Curve, of: str) -> list[tuple[str, str]]:
    """The last scores on one kind of samples."""
    return [
        (f"{of}accuracy", _percent(curve.last("accuracy"))),
        (f"{of}macro-F1", _percent(curve.last("macro_f1"))),
        (f"{of}loss", _number(curve.last("loss"), ".4g")),
    ]


def about_runs(count: int, standings: Sequence[Standing]) -> list[Any]:
    """The heading of several runs, and their ranking."""
    title = html.H2(f"{count} runs compared")
    if not standings:
        return [title, html.P("None of them has finished a round yet.", className="soft")]
    several = any(s.data for s in standings)
    validated = any(s.validation_accuracy for s in standings), any(s.validation_loss for s in standings)
    held = [name for name, some in zip(("validation accuracy", "validation loss"), validated, strict=True) if some]
    fair = (WORST, "gain over local", "worse than local")
    columns = ("configuration", "runs", "accuracy", "macro-F1", "ARI", "loss", *fair, *held, "mean rank", "p")
    columns = (*columns, "against the best")
    rows = [
        (
            *((s.data,) if several else ()),
            s.label,
            s.counted,
            _spread(s.accuracy, 100, " %"),
            _spread(s.macro_f1, 100, " %"),
            _spread(s.ari, 1, "", ".2f"),
            _spread(s.loss, 1, "", ".3g"),
            *(
                _spread(one, 1, "", ".3g") if s.regression else _spread(one, 100, " %")
                for one in (s.worst_decile, s.gain)
            ),
            _spread(s.worse, 100, " %"),
            *((_spread(s.validation_accuracy, 100, " %"),) if validated[0] else ()),
            *((_spread(s.validation_loss, 1, "", ".3g"),) if validated[1] else ()),
            _number(s.rank, ".1f"),
            _number(s.p, ".3f"),
            s.verdict,
        )
        for s in standings
    ]
    caption = (
        "Means and standard deviations over seeds. A t-test compares each configuration with the best, paired where "
        "seeds are the same; p is corrected by Holm's method, and below three seeds nothing is tested. "
        f"Worst 10 %: the mean over the worst tenth of clients. {NEEDS_LOCAL}"
    )
    return [title, table(caption, ("data", *columns) if several else columns, rows)]


def _fair(s: Standing) -> tuple[str, ...]:
    """The worst clients in % or, for regression, their loss; clients beside themselves alone."""
    scores = (s.worst_decile, s.gain)
    told = (_spread(one, 1, "", ".3g") if s.regression else _spread(one, 100, " %") for one in scores)
    return (*told, _spread(s.worse, 100, " %"))


def configuration(keys: Sequence[str], records: Sequence[RunRecord]) -> list[Any]:
    """The settings of one run; of several, those that differ."""
    settings = [dict(flat(record.config)) for record in records]
    names = sorted({name for mine in settings for name in mine})
    rows: list[tuple[str, ...]]
    if len(records) == 1:
        versions = [(f"version of {name}", value) for name, value in sorted(records[0].versions.items())]
        rows = [*((name, settings[0][name]) for name in names), *versions]
        if records[0].started is not None:
            rows.append(("started", records[0].started))
        title, columns = "Configuration and versions", ["key", "value"]
    else:
        differ = [name for name in names if len({mine.get(name) for mine in settings}) > 1]
        rows = [(name, *(mine.get(name, "") for mine in settings)) for name in differ]
        title, columns = "Settings in which these runs differ", ["key", *keys]
    if not rows:
        return []
    return [html.Details([html.Summary(title), table("", columns, rows)])]


def announcement(keys: Sequence[str], records: Sequence[RunRecord]) -> str:
    """For a screen reader: a tenth of a run at a time, lest it never falls silent."""
    if not records:
        return "No run is selected."
    if len(records) > 1:
        return f"{len(records)} runs are compared."
    record = records[0]
    part = ""
    if record.status == "running" and record.rounds_wanted:
        part = f", {100 // STEPS * (STEPS * record.rounds_done // record.rounds_wanted)} percent"
    return f"{keys[0]} is shown: {STATUS[record.status]}{part}."


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """Texts in rows; on a narrow screen each row is a card, and its cells carry their column's name."""
    head = html.Thead(html.Tr([html.Th(name, scope="col", role="columnheader") for name in columns], role="row"))
    body = [
        html.Tr(
            [html.Td(text, role="cell", **_label(name)) for name, text in zip(columns, row, strict=True)],
            role="row",
        )
        for row in rows
    ]
    inside = [head, html.Tbody(body, role="rowgroup")]
    whole = [html.Caption(caption), *inside] if caption else inside
    return html.Div(
        html.Table(whole, role="table"), className="table", tabIndex="0", role="region", **aria(label="table")
    )


def _label(name: str) -> dict[str, Any]:
    return {"data-label": name}


def _pill(status: str) -> Any:
    return html.Span(STATUS[status], className=f"status {status}")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)


def _spread(value: Spread | None, scale: float, unit: str, how: str = ".1f") -> str:
    if value is None:
        return ""
    mean = format(scale * value.mean, how)
    return f"{mean}{unit}" if value.std is None else f"{mean} ± {format(scale * value.std, how)}{unit}"
