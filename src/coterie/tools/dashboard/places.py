"""What the pages of a cluster and of a client say, as HTML; everything that comes from files is escaped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.text import short
from coterie.tools.dashboard.downloads import formats
from coterie.tools.dashboard.markdown import to_html
from coterie.tools.report import reading
from coterie.tools.report.record import RunRecord
from coterie.training.explanation import Explanation

MOST = 2000  # members that a page lists
WATCHED = "watch.json"  # what `coterie watch RUN --data NEW --json` prints, kept in the run's directory


def address(page: str, key: str, **words: int | str) -> str:
    """The address of a page or a file of a run."""
    return f"{page}?{urlencode({'run': key} | words, quote_via=quote)}"


def cluster_page(key: str, record: RunRecord, cluster: int, card: Callable[[], str]) -> Iterator[str]:
    """Members, scores, drift, the model card, files."""
    yield f"<h2>Cluster {cluster} of {_run(key)}</h2>"
    clients = record.clients
    here = np.flatnonzero(clients.cluster == cluster) if clients is not None else np.empty(0, dtype=np.int64)
    if clients is None or not len(here):
        yield f'<p class="problem">No client of this run is in cluster {cluster}.</p>'
        return
    yield _numbers([("clients", str(len(here))), *_means(record, here)])
    yield _files(key, cluster=cluster)
    yield from _drift(key, record, cluster)
    yield "<h3>Members</h3>"
    order = here[np.argsort(clients.accuracy[here] if not record.regression else -clients.loss[here], kind="stable")]
    rows = [
        (_client(key, record, int(clients.ids[i])), _short(clients.samples[i]), *_scores(record, int(i)))
        for i in order[:MOST]
    ]
    yield _table(("client", "test samples", *_names(record)), rows)
    if len(here) > MOST:
        yield f'<p class="soft">The {MOST} with the worst scores of {len(here)}; the table to download has all.</p>'
    yield "<h3>Model card</h3>"
    try:
        yield f'<div class="card">{to_html(card(), level=3)}</div>'
    except CoterieError as error:
        yield f'<p class="problem">{escape(str(error))}</p>'


def client_page(key: str, record: RunRecord, client: int, explain: Callable[[], Explanation]) -> Iterator[str]:
    """Its cluster and scores, and why it is there."""
    yield f"<h2>{escape(title(record, client))} of {_run(key)}</h2>"
    clients = record.clients
    row = np.flatnonzero(clients.ids == client) if clients is not None else np.empty(0, dtype=np.int64)
    if clients is None or not len(row):
        yield '<p class="problem">This run has not evaluated this client.</p>'
        return
    place, cluster = int(row[0]), int(clients.cluster[row[0]])
    scores = zip(_names(record), _scores(record, place), strict=True)
    spent = [("privacy spent (epsilon)", f"{record.epsilon[client]:.3g}")] if client in record.epsilon else []
    about = [("cluster", _cluster(key, cluster)), ("test samples", _short(clients.samples[place])), *scores, *spent]
    yield _numbers(about)
    yield _files(key, client=client)
    yield "<h3>Why it is in its cluster</h3>"
    try:
        found = explain()
    except CoterieError as error:
        yield f'<p class="problem">{escape(str(error))}</p>'
        return
    yield "".join(f"<p>{escape(line)}</p>" for line in str(found).splitlines())
    what = "loss on its training data" if found.measure == "losses" else "distance of the models"
    lines = [
        (_cluster(key, c) + (" (its own)" if c == found.cluster else ""), str(found.sizes[c]), escape(short(value, 3)))
        for c, value in sorted(enumerate(found.scores), key=lambda item: (item[1], item[0]))
        if c < len(found.sizes)
    ]
    yield _table(("cluster", "clients", what), lines)
    if found.nearest:
        yield "<h3>Nearest clients</h3>"
        near = [
            (_client(key, record, one.client), _cluster(key, one.cluster), escape(short(one.distance, 3)))
            for one in found.nearest
        ]
        sketches = found.nearest_by == "sketches"  # a product of two halves' differences, which may be below 0
        what = "squared distance of updates, noise subtracted" if sketches else "distance of losses"
        yield _table(("client", "cluster", what), near)


def title(record: RunRecord, client: int) -> str:
    """What a client is called at the beginning of a line."""
    who = record.who(client)
    return who[:1].upper() + who[1:]


def _drift(key: str, record: RunRecord, cluster: int) -> Iterator[str]:
    """What a watch found, where its report lies in the run's directory."""
    found = reading.mapping(reading.read_json(record.path / WATCHED).value)
    row = next((one for one in _objects(found.get("clusters")) if one.get("cluster") == cluster), None)
    if row is None:
        return
    yield "<h3>Drift</h3>"
    members = [one for one in _objects(found.get("clients")) if one.get("cluster") == cluster]
    drifting, suspicious = (
        ", ".join(_watched(key, record, one) for one in members if one.get(what) is True)
        for what in ("drifts", "suspicious")
    )
    if row.get("drifts") is True:
        yield "<p class=problem>Its clients' new samples no longer fit it.</p>"
    if drifting:
        yield f"<p class=problem>Members that drift: {drifting}.</p>"
    elif row.get("drifts") is not True:
        yield "<p>No drift is shown.</p>"
    if suspicious:
        yield f"<p>Suspicious members, with too few new samples to call it drift: {suspicious}.</p>"
    pairs = (("clients tested", "clients"), ("doubtful", "doubtful"), ("loss before", "loss_before"))
    numbers = [(name, _value(row.get(one))) for name, one in (*pairs, ("loss now", "loss_now"), ("p", "p"))]
    yield _numbers(numbers)


def _objects(rows: object) -> list[dict[str, Any]]:
    return [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []


def _watched(key: str, record: RunRecord, one: dict[str, Any]) -> str:
    """A client of a watch: a link, and its loss then and now."""
    client = one.get("client")
    who = _client(key, record, client) if isinstance(client, int) else escape(str(one.get("name", "")))
    return f"{who} (loss {_value(one.get('loss_before'))} to {_value(one.get('loss_now'))})"


def _value(value: object) -> str:
    return _short(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else "-"


def _names(record: RunRecord) -> tuple[str, ...]:
    return ("loss", "RMSE", "MAE") if record.regression else ("accuracy", "macro-F1", "loss")


def _scores(record: RunRecord, place: int) -> tuple[str, ...]:
    clients = record.clients
    assert clients is not None
    if record.regression:
        return tuple(_short(column[place]) for column in (clients.loss, clients.rmse, clients.mae))
    shares = (_percent(column[place]) for column in (clients.accuracy, clients.macro_f1))
    return (*shares, _short(clients.loss[place]))


def _means(record: RunRecord, here: Any) -> list[tuple[str, str]]:
    """Over the clients of a cluster: each counted once, as in its model card, and by their test samples."""
    clients = record.clients
    assert clients is not None
    weights = np.nan_to_num(clients.samples[here])

    def mean(values: Any, by: Any) -> float:
        known = ~np.isnan(values[here]) & (weights > 0)
        return float(np.average(values[here][known], weights=by[known])) if known.any() else float("nan")

    scores = (("loss", clients.loss, _short), ("MAE", clients.mae, _short))
    if not record.regression:
        scores = (("accuracy", clients.accuracy, _percent), ("loss", clients.loss, _short))
    counts = (("mean of clients", np.ones_like(weights)), ("of all test samples", weights))
    return [(f"{name}, {what}", show(mean(values, by))) for what, by in counts for name, values, show in scores]


def _files(key: str, **whose: int) -> str:
    links = [("assignments.csv", address("download/assignments.csv", key))]
    links += [(f"model ({name})", address("download/model.zip", key, format=name, **whose)) for name in formats()]
    if "cluster" in whose:
        links.append(("model card", address("download/card.md", key, **whose)))
    buttons = "".join(f'<a class="button" href="{escape(to)}" download>{escape(name)}</a>' for name, to in links)
    return f'<p class="downloads">Download: {buttons}</p>'


def _run(key: str) -> str:
    return f'<a href="{escape(address("./", key))}">{escape(key)}</a>'


def _cluster(key: str, cluster: int) -> str:
    return f'<a href="{escape(address("cluster", key, cluster=cluster))}">cluster {cluster}</a>'


def _client(key: str, record: RunRecord, client: int) -> str:
    return f'<a href="{escape(address("client", key, client=client))}">{escape(record.label(client))}</a>'


def _numbers(pairs: Sequence[tuple[str, str]]) -> str:
    return '<dl class="key">' + "".join(f"<div><dt>{a}</dt><dd>{b}</dd></div>" for a, b in pairs) + "</dl>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in columns)
    body = "".join(
        '<tr role="row">'
        + "".join(f'<td role="cell" data-label="{n}">{cell}</td>' for n, cell in zip(columns, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        '<div class="table" tabindex="0" role="region" aria-label="table"><table role="table"><thead>'
        f'<tr role="row">{head}</tr></thead><tbody role="rowgroup">{body}</tbody></table></div>'
    )


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{100 * value:.1f} %"


def _short(value: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if float(value).is_integer() else short(float(value), 4)
