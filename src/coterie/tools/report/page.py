"""One HTML page about a run or several: what stands on it is collected here, templates/page.html writes it down.

A page is one file that asks nothing of a network, unless it is told to load its plotting library from a CDN, or is
served by `live`, which sends that library once.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import yaml

from coterie.core.errors import CoterieError
from coterie.core.text import short
from coterie.tools.report.figures import KINDS, Kind, Picture, of_run, of_runs
from coterie.tools.report.figures_clusters import client_similarity, model_map
from coterie.tools.report.figures_rounds import Reason, in_bytes, missing_reasons
from coterie.tools.report.figures_style import percent, plotly, template
from coterie.tools.report.ranking import NEEDS_LOCAL, Spread, Standing, group, rank
from coterie.tools.report.record import Clients, Curve, RunRecord
from coterie.training.drift_scores import FOUND, mean_since, waits_after
from coterie.training.score_text import WORST as WORST_TENTH

DETAILED = 12  # of several runs, so many have their own figures in the file
WIDE = ("sizes", "moves", "missing", "dendrogram")  # figures that are as wide as the page
SEVERAL_MAPPED, SEVERAL_PAIRS = 500, 100  # clients drawn of each of several runs, to keep the file small
# The numbers of a regression.
ERRORS = (("loss", "MSE"), ("rmse", "RMSE"), ("mae", "MAE"), ("r2", "R2"), ("constant", "MSE of a constant"))
WORST = 10  # clients listed
REASONS = 20
NAME = 120  # characters of a name or a reason
TEXT = 4000  # characters of any other text from a file
CODE = 50_000  # characters of a configuration
CDN = "https://cdn.plot.ly"
Source = Literal["inside", "cdn", "live"]  # where a page has its plotting library from


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is more than text."""

    text: str
    status: bool = False  # the text is a run's status
    problems: Sequence[str] = ()
    link: str = ""
    check: str = ""  # it begins with a box to tick, of this value


@dataclass(frozen=True)
class Table:
    """A table; on a narrow screen a row is a card, and cells carry their column's name."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    numbers: frozenset[str] = frozenset()  # the columns that are aligned to the right


@dataclass(frozen=True)
class Chart:
    """The place of a figure: its data is under the same name elsewhere in the page."""

    name: str
    label: str
    words: str
    height: int
    wide: bool


@dataclass(frozen=True)
class Section:
    """A heading and what is below it."""

    heading: str = ""
    anchor: str = ""
    lines: Sequence[str] = ()
    commands: Sequence[tuple[str, str]] = ()  # each with a note
    charts: Sequence[Chart] = ()
    table: Table | None = None
    code: str = ""
    note: str = ""
    linked: bool = True  # at the top of the page
    selects: bool = False  # the table's boxes are a form


@dataclass(frozen=True)
class Head:
    """What a run is, in a few lines, and the numbers that are looked for first."""

    status: str = ""
    facts: str = ""
    problems: Sequence[str] = ()
    lines: Sequence[str] = ()
    figures: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Folded:
    """One of several runs: its figures are drawn when it is opened."""

    anchor: str
    name: str
    title: str
    head: Head
    sections: Sequence[Section]


@dataclass
class Page:
    """All of a page."""

    title: str
    head: Head | None = None
    sections: list[Section] = field(default_factory=list)
    runs: list[Folded] = field(default_factory=list)
    note: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def chart(self, prefix: str, picture: Picture) -> Chart:
        """A place for this figure, which is kept."""
        name = f"{prefix}-{picture.name}"
        figure = json.loads(picture.figure.to_json())
        for unneeded in ("template", "meta"):
            figure["layout"].pop(unneeded, None)
        self.figures[name] = figure
        label = clipped(f"{figure['layout']['title']['text']}. {picture.words}")
        return Chart(name, label, clipped(picture.words), figure["layout"]["height"], picture.name in WIDE)

    def main(self) -> str:
        """What is between the bar at the top and the footer."""
        return str(_template("parts.html").module.main(self))

    def html(self, source: Source = "inside", live: Mapping[str, str] | None = None) -> str:
        """The whole page. live: the address that says what has changed, and the state that this page shows."""
        policy, script, said = _plotly(source)
        templates = {theme: _theme(theme) for theme in ("light", "dark")}
        data = {"templates": templates, "figures": self.figures, "live": live}
        return str(
            _template("page.html").render(
                page=self,
                live=live,
                policy=policy,
                plotly=script,
                source=said,
                css=_own("page.css"),
                script=_own("page.js"),
                # Within a script only "<" could end it.
                figures=json.dumps(data, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c"),
            )
        )


def page_of(
    records: Sequence[RunRecord], say: Callable[[str], None] = lambda _: None, kinds: Sequence[Kind] = KINDS
) -> Page:
    """The page about these runs. `say` hears which run is being drawn."""
    plotly()
    if len(records) == 1:
        page = Page(clipped(_title(records[0]), 200), head_of(records[0]))
        page.sections += _sections(page, records[0], "run", kinds, say)
        return page
    groups = group(records)
    failed = sum(record.status == "failed" for record in records)
    title = f"{len(records)} runs, {len(groups)} configuration{'s' * (len(groups) != 1)}"
    page = Page(title + (f", {failed} failed" if failed else ""))
    if groups:
        page.sections.append(Section("Ranking", "ranking", table=standings(rank(groups))))
    charts = [page.chart("all", picture) for picture in of_runs(records)]
    if charts:
        page.sections.append(Section("Comparison", "comparison", charts=charts))
    page.sections.append(Section("Runs", "runs", table=overview(records)))
    smaller: dict[str, Callable[..., Any]] = {
        "map": partial(model_map, most=SEVERAL_MAPPED),
        "clients-similarity": partial(client_similarity, most=SEVERAL_PAIRS),
    }
    small = [replace(kind, draw=smaller.get(kind.name, kind.draw)) for kind in kinds]
    for number, record in enumerate(records[:DETAILED], 1):
        parts = [replace(s, linked=False) for s in _sections(page, record, f"run{number}", small, say)]
        name, title = clipped(record.name, 200), clipped(_title(record), 200)
        page.runs.append(Folded(f"run{number}", name, title, head_of(record), parts))
    if len(records) > DETAILED:
        page.note = f"The other {len(records) - DETAILED} runs have no figures of their own here: report fewer at once."
    return page


def render(records: Sequence[RunRecord], say: Callable[[str], None] = lambda _: None, source: Source = "inside") -> str:
    """The page about these runs as HTML."""
    return page_of(records, say).html(source)


def _sections(
    page: Page, record: RunRecord, prefix: str, kinds: Sequence[Kind], say: Callable[[str], None]
) -> list[Section]:
    say(record.name)
    pictures = of_run(record, kinds=kinds)
    found = []
    for heading in dict.fromkeys(kind.section for kind in kinds):
        charts = [page.chart(prefix, picture) for picture in pictures if picture.section == heading]
        if charts:
            below = reasons(record) if heading == "Rounds" else None
            found.append(Section(heading, f"{prefix}-{heading.lower()}", charts=charts, table=below))
    listed = worst(record)
    if listed is not None:
        found.append(Section("Clients", f"{prefix}-clients", table=listed))
    if not pictures:
        found.append(Section(lines=["No round was evaluated, so there is nothing to draw."]))
    if record.config:
        code = yaml.safe_dump(dict(record.config), sort_keys=False, allow_unicode=True)
        versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
        anchor = f"{prefix}-configuration"
        found.append(Section("Configuration", anchor, code=clipped(code, CODE), note=clipped(versions)))
    return found


def _title(record: RunRecord) -> str:
    about = record.data.split(": ")[0]
    return f"{record.method} on {about}" if about else record.name if record.method == "unknown" else record.method


# ------------------------------------------------------------------------------------------------- as HTML


def clipped(value: object, most: int = TEXT) -> str:
    """A text from a file at a length that a page can bear."""
    line = str(value)
    return line if len(line) <= most else line[: most - 1] + "…"


@cache
def _template(name: str) -> Any:
    try:
        import jinja2
    except ImportError:
        raise CoterieError("pages need jinja2: pip install 'coterie[report]'", code="extra-missing") from None
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("coterie.tools.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["zip"] = partial(zip, strict=True)
    return found.get_template(name)


def _own(name: str) -> str:
    return files("coterie.tools.report").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _theme(theme: Literal["light", "dark"]) -> Any:
    return json.loads(json.dumps(template(theme).to_plotly_json()))


def _plotly(source: Source) -> tuple[str, str, str]:
    """The page's policy of what it may load, the element that loads the plotting library, and a word about both."""
    from plotly.offline import get_plotlyjs, get_plotlyjs_version

    scripts, more = "'unsafe-inline'", ""
    if source == "cdn":
        address = f"{CDN}/plotly-{get_plotlyjs_version()}.min.js"
        scripts, element = f"{scripts} {CDN}", f'<script src="{address}" charset="utf-8"></script>'
        said = "Its figures are drawn by a library that is loaded from cdn.plot.ly."
    elif source == "live":
        scripts, more, element = f"{scripts} 'self'", "; connect-src 'self'; form-action 'self'", LIVE_SCRIPT
        said = "This page follows the runs' files."
    else:
        packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
        element = f'<script id="plotly" type="application/gzip">{packed}</script>'
        said = "Everything on this page is in this one file."
    policy = f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
    return policy + more, element, said


LIVE_SCRIPT = '<script src="plotly.js"></script>'


# ------------------------------------------------------------------------------------------------- the parts


def head_of(record: RunRecord) -> Head:
    """What the run is."""
    facts = [f"seed {record.seed}" if record.seed is not None else "", record.started or "", str(record.path)]
    problems = [_sentence(record.problem)] if record.problem else []
    problems += [f"Warning: {found}." for found in record.warnings]
    problems += [_sentence(record.attack)] if record.attack else []
    return Head(
        record.status,
        clipped(" · ".join(filter(None, facts))),
        [clipped(line) for line in problems],
        [clipped(record.data)] if record.data else [],
        key_figures(record),
    )


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def key_figures(record: RunRecord) -> list[tuple[str, str]]:
    """The numbers that are looked for first."""
    curve = record.curve
    found: list[tuple[str, str | None]] = [
        *(_scores(record, curve, "" if curve.validation is None else "test ")),
        *(_scores(record, curve.validation, "validation ") if curve.validation is not None else ()),
        (WORST_TENTH, _shown(record.worst_decile, _form(record.regression))),
        ("clusters", _shown(curve.latest("clusters"), "{:.0f}".format)),
        ("ARI", _shown(curve.latest("ari"), "{:.2f}".format)),
        *_followed(record),
        ("rounds", _rounds(record) if record.rounds_done else None),
        ("clients", _clients(record)),
        ("seconds", f"{record.seconds:,.1f}" if record.seconds else None),
        ("sent to clients", _total(curve.bytes_down)),
        ("sent back", _total(curve.bytes_up)),
        ("missing answers", f"{len(curve.missing):,}" if curve.missing else None),
        ("newcomers", _newcomers(record.newcomers)),
        ("privacy spent (epsilon)", _shown(curve.last("epsilon"), "{:.3g}".format)),
    ]
    return [(name, clipped(value)) for name, value in found if value is not None]


def _followed(record: RunRecord) -> list[tuple[str, str | None]]:
    """How the run went after its data changed."""
    curve, changes = record.curve.by_round, [change for change in record.changes if change <= record.rounds_done]
    if not changes:
        return []
    name, values, form = (
        ("loss", curve.loss, "{:.4g}".format) if record.regression else ("accuracy", curve.accuracy, percent)
    )
    found: list[tuple[str, str | None]] = [
        (f"mean {name} since the data changed", _shown(mean_since(changes[0], curve.round, values), form))
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
        (f"{of}accuracy", _shown(curve.last("accuracy"), percent)),
        (f"{of}macro-F1", _shown(curve.last("macro_f1"), percent)),
        *((f"{of}{name}", _shown(curve.last(key), "{:.4g}".format)) for key, name in errors),
    ]


def _form(regression: bool) -> Callable[[float], str]:
    """How a client's score is written: a share, or a loss."""
    return "{:.4g}".format if regression else percent


def _shown(value: float | None, how: Callable[[float], str]) -> str | None:
    """A number in its form, or nothing."""
    return None if value is None else how(value)


def _cell(value: float | None, how: Callable[[float], str]) -> str:
    return "-" if value is None or np.isnan(value) else how(float(value))


def _rounds(record: RunRecord) -> str:
    """30, or 12 of 30"""
    wanted = record.rounds_wanted
    return str(record.rounds_done) if wanted in (None, record.rounds_done) else f"{record.rounds_done} of {wanted}"


def _clients(record: RunRecord) -> str | None:
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


def reasons(record: RunRecord) -> Table | None:
    """Why clients were missing, where any were."""
    found = missing_reasons(record)
    if not found:
        return None
    rows = [[clipped(r.reason, NAME), f"{r.times:,}", f"{r.clients:,}", _first(record, r)] for r in found[:REASONS]]
    more = f"; {len(found) - REASONS} rarer reasons are left out" if len(found) > REASONS else ""
    columns = ("reason", "times", "clients", "first")
    return Table(f"Why clients were missing{more}", columns, rows, frozenset({"times", "clients"}))


def _first(record: RunRecord, reason: Reason) -> str:
    return clipped(f"{record.who(reason.first_client)} in round {reason.first_round}", NAME)


def worst(record: RunRecord) -> Table | None:
    """The clients that fare worst, with their clusters."""
    found = record.clients
    if found is None:
        return None
    scores = -found.loss if record.regression else found.accuracy
    order = np.argsort(scores, kind="stable")
    order = order[~np.isnan(scores[order])][:WORST]
    hidden = found.hidden
    forms: list[tuple[str, str, Callable[[float], str]]] = [
        (f"{found.scored_on} samples", "samples", "{:.0f}".format),
        *(
            ((name, key, "{:.4g}".format) for key, name in ERRORS if not np.isnan(getattr(found, key)).all())
            if record.regression
            else (
                ("loss", "loss", "{:.4g}".format),
                ("accuracy", "accuracy", percent),
                ("macro-F1", "macro_f1", percent),
            )
        ),
    ]
    of_clusters = ["found cluster", *(["hidden"] if hidden is not None else [])]
    rows = [
        [
            clipped(found.names[i], NAME),
            *(str(column[i]) for column in (found.cluster, hidden) if column is not None),
            *(_cell(getattr(found, key)[i], how) for _, key, how in forms),
        ]
        for i in order.tolist()
    ]
    columns = [*of_clusters, *(name for name, _, _ in forms)]
    of = "" if found.scored_on == "test" else f", on {found.scored_on} samples"
    caption = f"The {len(rows)} clients that fare worst{of}"
    return Table(caption, ["client", *columns], rows, frozenset(columns)) if rows else None


def overview(records: Sequence[RunRecord]) -> Table:
    """A line per run."""
    forms: list[tuple[str, str, Callable[[float], str]]] = [
        ("accuracy", "accuracy", percent),
        ("macro-F1", "macro_f1", percent),
        ("loss", "loss", "{:.4g}".format),
        ("ARI", "ari", "{:.2f}".format),
    ]
    held = [r.curve.validation for r in records]  # on validation samples, where runs validate
    also = [form for form in forms[::2] if any(c is not None and c.last(form[1]) is not None for c in held)]
    numbers = ["seed", "rounds", *(name for name, _, _ in forms), WORST_TENTH, *(f"validation {n}" for n, _, _ in also)]
    rows: list[Sequence[str | Cell]] = []
    for r, c in zip(records, held, strict=True):
        troubles = [*([r.problem] if r.problem else []), *(f"warning: {found}" for found in r.warnings)]
        rows.append(
            [
                Cell(clipped(r.name, NAME), problems=[clipped(trouble) for trouble in troubles]),
                Cell(r.status, status=True),
                clipped(r.method, NAME),
                "-" if r.seed is None else str(r.seed),
                _rounds(r),
                *(_cell(r.curve.last(column), how) for _, column, how in forms),
                _cell(r.worst_decile, _form(r.regression)),
                *(_cell(None if c is None else c.last(column), how) for _, column, how in also),
            ]
        )
    return Table("The runs", ["run", "status", "method", *numbers], rows, frozenset(numbers))


def standings(found: Sequence[Standing]) -> Table:
    """The ranking as a table. A number that no configuration has is no column."""

    def percents(of: Spread | None) -> str:
        return _spread(of, 100, 1)

    def losses(of: Spread | None) -> str:
        return _spread(of, 1, 3)

    several = any(s.data for s in found)
    columns: list[tuple[str, Callable[[Standing], str]]] = [
        ("accuracy", lambda s: percents(s.accuracy)),
        ("macro-F1", lambda s: percents(s.macro_f1)),
        ("ARI", lambda s: _spread(s.ari, 1, 2)),
        ("loss", lambda s: losses(s.loss)),
        (WORST_TENTH, lambda s: losses(s.worst_decile) if s.regression else percents(s.worst_decile)),
        ("gain over local", lambda s: losses(s.gain) if s.regression else percents(s.gain)),
        ("worse than local", lambda s: percents(s.worse)),
        ("validation accuracy", lambda s: percents(s.validation_accuracy)),
        ("validation loss", lambda s: losses(s.validation_loss)),
        ("mean rank", lambda s: "-" if s.rank is None else f"{s.rank:.2f}"),
        ("p", lambda s: "-" if s.p is None else f"{s.p:.2g}"),
    ]
    kept = [(name, how) for name, how in columns if any(how(s) != "-" for s in found)]
    named = [*(["data"] if several else []), "configuration", "against the best"]
    rows = [
        [
            *([clipped(s.data, NAME)] if several else []),
            clipped(s.label, NAME),
            clipped(s.verdict),
            s.counted,
            *(how(s) for _, how in kept),
        ]
        for s in found
    ]
    each = ", data set by data set" if several else ""
    alone = "" if any(s.gain for s in found) else f" {NEEDS_LOCAL}"
    numbers = ["runs", *(name for name, _ in kept)]
    caption = (
        f"Mean ± standard deviation over seeds (accuracy and macro-F1 in %), best first{each}; p is two-sided and "
        "corrected by Holm's method for the number of comparisons. Worst 10 %: the mean over the worst tenth of "
        f"clients.{alone}"
    )
    return Table(caption, [*named, *numbers], rows, frozenset(numbers))


def _spread(of: Spread | None, scale: int, digits: int) -> str:
    if of is None:
        return "-"
    return short(scale * of.mean, digits) + (f" ± {short(scale * of.std, digits)}" if of.std is not None else "")


def importance_page(shares: Mapping[str, float], metric: str, trials: int) -> str:
    """How much each key of a search mattered."""
    from coterie.tools.report.figures_runs import importance

    about = (
        f"Found by Optuna (fANOVA) from {trials} trials. With few trials, or where keys hardly vary, read it as a "
        "hint: it tells what the search saw, not what would happen elsewhere."
    )
    page = Page(f"What matters to {metric}", Head(lines=[about]))
    chart = page.chart("one", Picture("importance", "Importance", importance(shares, metric)))
    page.sections.append(Section(charts=[chart]))
    return page.html()
