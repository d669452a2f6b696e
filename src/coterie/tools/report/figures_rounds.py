"""What changed over the rounds of one run: scores, agreement with the truth, heterogeneity, cost, who was missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.tools.report.figures_style import (
    CLUSTERS,
    Theme,
    area,
    bar_marker,
    blank,
    colour,
    dash,
    percent,
    plain,
    plotly,
    template,
    thin,
)
from coterie.tools.report.reading import Floats, Ints
from coterie.tools.report.record import Absence, Curve, RunRecord

Score = Literal["accuracy", "macro_f1", "loss"]
DECADES = 3  # a curve that spans more has a logarithmic axis
LOG = {"type": "log", "exponentformat": "e"}
GREY = "#8a8a8a"  # of all clients together
MARKED = 40  # changes of the data that are drawn
NAMES = {"accuracy": "accuracy", "macro_f1": "macro-F1", "loss": "loss"}


def score(record: RunRecord, what: Score = "accuracy", theme: Theme = "light") -> Any:
    """A score over rounds: overall, per cluster, and the band of the middle 80 % of clients. None without it."""
    curve = record.curve.by_round
    values, test = getattr(curve, what), record.curve.last(what) if curve is not record.curve else None
    there = np.flatnonzero(~np.isnan(values))
    if not len(there):
        return None
    shown = there[thin(len(there))]
    name, first, last = NAMES[what], there[0], there[-1]
    title, say = name[0].upper() + name[1:], percent if what != "loss" else "{:.4g}".format
    said = title if curve is record.curve else f"Validation {name}"
    tested = "" if test is None else f"; test {name} {say(test)}, after the last round"
    best = values[there].min() if what == "loss" else values[there].max()
    figure = blank(
        f"{title} over rounds",
        "round",
        f"{name} (%)" if what != "loss" else "loss (mean over clients)",
        f"{said} from {say(values[first])} in round {curve.round[first]} to {say(values[last])} in round "
        f"{curve.round[last]}; best {say(best)}{tested}.",
        theme,
    )
    _band_and_clusters(figure, record, what)
    figure.add_scatter(
        x=curve.round[shown],
        y=values[shown],
        mode="lines+markers" if len(shown) <= 60 else "lines",
        name=_of(record, "all clients"),
        line={"width": 3, "color": GREY},
        marker={"size": 5},
    )
    _test_point(figure, record, what, "all clients (test)", GREY)
    figure.update_layout(hovermode="x unified", xaxis_hoverformat="d")
    figure.update_yaxes(tickformat=".0%" if what != "loss" else None, hoverformat=".1%" if what != "loss" else ".4g")
    if what == "loss" and spans_decades(values, np.array([] if test is None else [test])):
        figure.update_yaxes(**LOG)
    mark_changes(figure, record)
    return figure


def mark_changes(figure: Any, record: RunRecord) -> None:
    """A dotted line where the clients' data changes, named once."""
    for number, change in enumerate(record.changes[:MARKED]):
        named = {"annotation_text": "data changes", "annotation_font_color": GREY} if not number else {}
        figure.add_vline(x=change, line_dash="dot", line_width=1, line_color=GREY, **named)


def _of(record: RunRecord, name: str) -> str:
    """The name of a curve; where the run validates, it says so."""
    return name if record.curve.validation is None else f"{name} (validation)"


def _test_point(figure: Any, record: RunRecord, column: str, name: str, tint: str) -> None:
    """Where the run validates: its one score on test samples, after the last round."""
    values = getattr(record.curve, column)
    there = np.flatnonzero(~np.isnan(values))
    if record.curve.validation is None or not len(there):
        return
    figure.add_scatter(
        x=record.curve.round[there],
        y=values[there],
        mode="markers",
        name=name,
        marker={"size": 12, "symbol": "diamond", "color": tint, "line": {"width": 1, "color": "white"}},
    )


def spans_decades(*curves: Floats) -> bool:
    """Whether positive values differ so much that on a linear axis all but the largest would lie on the floor."""
    values = np.concatenate([np.asarray(curve, dtype=np.float64).ravel() for curve in curves])
    values = values[np.isfinite(values)]
    return bool(len(values) and values.min() > 0 and np.log10(values.max()) - np.log10(values.min()) > DECADES)


def _band_and_clusters(figure: Any, record: RunRecord, what: Score) -> None:
    trail = record.trail
    matrix = None if trail is None else getattr(trail, what)
    if trail is None or matrix is None:
        return
    some = np.flatnonzero(~np.isnan(matrix).all(1))
    some = some[thin(len(some))]
    low, high = np.nanquantile(matrix[some], (0.1, 0.9), axis=1)
    x = trail.round[some]
    silent = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "legendgroup": "band"}
    figure.add_scatter(x=x, y=low, showlegend=False, **silent)
    fill = {"fill": "tonexty", "fillcolor": "rgba(138,138,138,0.2)"}
    figure.add_scatter(x=x, y=high, name=_of(record, "middle 80 % of clients"), **silent, **fill)
    clusters, _ = large_clusters(trail.cluster)
    if len(clusters) == 1:
        return
    for k in clusters.tolist():
        figure.add_scatter(
            x=x,
            y=mean_where(matrix[some], trail.cluster[some] == k),
            mode="lines",
            name=_of(record, f"cluster {k}"),
            line={"width": 2, "color": colour(k), "dash": dash(k)},
        )


def large_clusters(cluster: Ints, most: int = CLUSTERS) -> tuple[Ints, int]:
    """The clusters that clients were in most, by number, and how many others there were."""
    numbers, times = np.unique(cluster[cluster >= 0], return_counts=True)
    most += len(numbers) == most + 1  # "one other cluster" would take as much room as the cluster itself
    kept: Ints = np.sort(numbers[np.argsort(-times, kind="stable")[:most]])
    return kept, len(numbers) - len(kept)


def mean_where(values: Floats, mask: Any) -> Floats:
    """The mean of each row over the clients in the mask; NaN where there are none."""
    here = mask & ~np.isnan(values)
    count = here.sum(1)
    total = np.where(here, values, 0.0).sum(1)
    mean: Floats = np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
    return mean


def agreement(record: RunRecord, theme: Theme = "light") -> Any:
    """ARI and NMI with the hidden clusters over rounds; for mixtures, their error as well. None without a truth."""
    columns = [("ari", "ARI"), ("nmi", "NMI"), ("mixture_error", "mixture error (0 is perfect)")]
    curve = record.curve.by_round
    shown = [(column, name) for column, name in columns if curve.last(column) is not None]
    if not shown:
        return None
    ends = ", ".join(f"{name} {record.curve.latest(column):.2f}" for column, name in shown)
    figure = blank(
        "Agreement with the hidden clusters",
        "round",
        "agreement (1 is perfect)" if shown[0][0] == "ari" else "mean total variation (0 is perfect)",
        f"At the last evaluation: {ends}.",
        theme,
    )
    for place, (column, name) in enumerate(shown):
        line(figure, curve, column, _of(record, name), place)
        _test_point(figure, record, column, f"{name} (test)", colour(place))
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="x unified")
    mark_changes(figure, record)
    return figure


def heterogeneity(record: RunRecord, theme: Theme = "light") -> Any:
    """Clusterability B and discrepancy over rounds, one above the other: they have no common scale."""
    columns = [("clusterability", "clusterability B"), ("discrepancy", "discrepancy")]
    shown = [(column, name) for column, name in columns if record.curve.last(column) is not None]
    if not shown:
        return None
    plotly()
    from plotly.subplots import make_subplots

    said = " ".join(_unlike(record, column) for column, _ in shown)
    figure = make_subplots(rows=len(shown), cols=1, shared_xaxes=True, vertical_spacing=0.08)
    figure.update_layout(
        template=template(theme),
        title={"text": "How unlike the clients of a cluster are"},
        height=420,
        meta={"words": said},
        hovermode="x unified",
    )
    for place, (column, name) in enumerate(shown):
        line(figure, record.curve, column, name, place, row=place + 1, col=1)
        values = getattr(record.curve, column)
        values = values[~np.isnan(values)]
        wide = values.min() > 0 and values.max() > 30 * values.min()
        unit = "B (no unit)" if column == "clusterability" else "distance of models"
        figure.update_yaxes(
            title_text=unit, type="log" if wide else None, dtick=1 if wide else None, row=place + 1, col=1
        )
    figure.update_xaxes(title_text="round", row=len(shown), col=1)
    return figure


def _unlike(record: RunRecord, column: str) -> str:
    """What a curve of heterogeneity shows and how to read it: B rises while models come closer to one another."""
    values = getattr(record.curve, column)
    first, last = values[~np.isnan(values)][[0, -1]]
    went = f"from {first:.3g} to {last:.3g}"
    if column == "discrepancy":
        said = f"Discrepancy, the mean distance of clients' models from their cluster's, went {went}"
        return f"{said}; the smaller, the more alike."
    return (
        f"Clusterability B, how far the worst client's update is from its cluster's mean update, as a multiple of that "
        f"mean's length, went {went}. B tends to rise as training converges, because the mean update becomes shorter: "
        "compare runs at the same round."
    )


def line(figure: Any, curve: Curve, column: str, name: str, place: int, scale: float = 1.0, **where: int) -> None:
    """A column of the curve, where it has values."""
    values = getattr(curve, column)
    there = np.flatnonzero(~np.isnan(values))
    there = there[thin(len(there))]
    figure.add_scatter(
        x=curve.round[there],
        y=values[there] * scale,
        mode="lines+markers" if len(there) <= 3 else "lines",
        name=name,
        line={"width": 2, "color": colour(place), "dash": dash(place)},
        **where,
    )


REASONS = 6  # told apart in the figure
BARS = 150


@dataclass(frozen=True)
class Reason:
    """Why clients were missing, and how often."""

    reason: str
    times: int
    clients: int
    first_round: int
    first_client: int


def traffic(record: RunRecord, theme: Theme = "light") -> Any:
    """What every round would send to clients over a network, and get back."""
    curve = record.curve
    if not (np.nansum(curve.bytes_down) + np.nansum(curve.bytes_up)):
        return None
    most = max(np.nanmax(curve.bytes_down, initial=0), np.nanmax(curve.bytes_up, initial=0))
    unit, size = byte_unit(most)
    figure = blank(
        "Bytes per round",
        "round",
        f"sent ({unit})",
        f"In all {in_bytes(float(np.nansum(curve.bytes_down)))} to the clients and "
        f"{in_bytes(float(np.nansum(curve.bytes_up)))} back.",
        theme,
    )
    for place, (column, name) in enumerate((("bytes_down", "to clients"), ("bytes_up", "from clients"))):
        line(figure, curve, column, name, place, scale=1 / size)
    figure.update_yaxes(rangemode="tozero", hoverformat=".3g")
    figure.update_layout(hovermode="x unified")
    return figure


def seconds(record: RunRecord, theme: Theme = "light") -> Any:
    """What every round took, at the clients and at the server, one upon the other."""
    curve = record.curve
    shown = np.flatnonzero(~np.isnan(curve.seconds))
    if not len(shown):
        return None
    client = np.nan_to_num(curve.client_seconds[shown])
    server = np.clip(curve.seconds[shown] - client, 0, None)
    figure = blank(
        "Seconds per round",
        "round",
        "time (s)",
        f"In all {client.sum():.1f} seconds of clients' work and {server.sum():.1f} of the server's.",
        theme,
    )
    some = thin(len(shown))
    for place, (values, name) in enumerate(((client, "clients' work"), (server, "server's work"))):
        area(figure, curve.round[shown][some], values[some], name, place)
    figure.update_layout(hovermode="x unified")
    figure.update_yaxes(hoverformat=".3g")
    return figure


def missing(record: RunRecord, theme: Theme = "light") -> Any:
    """Clients that did not answer, round by round and by reason. None where all did."""
    reasons = missing_reasons(record)
    if not reasons:
        return None
    curve = record.curve
    total, asked = sum(reason.times for reason in reasons), np.nansum(curve.asked)
    of_all = f" of {asked:,.0f} asked" if asked else ""
    often = f"{reasons[0].reason} ({reasons[0].times:,} times)"
    say = f"{total:,} answers{of_all} were missing; most often because: {often}."
    starts = np.arange(0, len(curve.round), -(-len(curve.round) // BARS))  # of bars: of a long run, several rounds each
    together = f", mean of {starts[1]} rounds" if len(starts) < len(curve.round) else ""
    figure = blank("Missing clients per round", "round", f"clients{together}", say, theme)
    told = [reason.reason for reason in reasons[:REASONS]]
    place_of = {number: place for place, number in enumerate(curve.round.tolist())}
    counts = np.zeros((len(told) + 1, len(curve.round)))
    for absence in curve.missing:
        row = told.index(absence.reason) if absence.reason in told else len(told)
        counts[row, place_of[absence.round]] += 1
    means = np.add.reduceat(counts, starts, axis=1) / np.diff([*starts, len(curve.round)])
    for row, name in enumerate([*(plain(reason, 50) for reason in told), "other reasons"]):
        if means[row].any():
            figure.add_bar(x=curve.round[starts], y=means[row], name=name, marker=bar_marker(row))
    figure.update_layout(barmode="stack", bargap=0.1, showlegend=True)
    return figure


def missing_reasons(record: RunRecord) -> list[Reason]:
    """Every reason with how often it was given, the most frequent first."""
    by_reason: dict[str, list[Absence]] = {}
    for absence in record.curve.missing:
        by_reason.setdefault(absence.reason, []).append(absence)
    found = [
        Reason(reason, len(mine), len({absence.client for absence in mine}), mine[0].round, mine[0].client)
        for reason, mine in by_reason.items()
    ]
    return sorted(found, key=lambda reason: -reason.times)


def byte_unit(most: float) -> tuple[str, int]:
    """A unit in which this is no long number."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if most >= size:
            return unit, size
    return "bytes", 1


def in_bytes(count: float) -> str:
    """104000 -> 104 kB"""
    unit, size = byte_unit(count)
    return f"{count / size:.3g} {unit}" if size > 1 else f"{count:.0f} bytes"


CLIENT_BARS = 30  # values of epsilon that have a bar of their own


def epsilon(record: RunRecord, theme: Theme = "light") -> Any:
    """Epsilon after every round, of the clients on which most and least was spent. None without privacy."""
    curve = record.curve
    most, least = curve.last("epsilon"), curve.last("epsilon_least")
    if most is None:
        return None
    apart = "the same for every client" if most == least else f"the least of any client is {least:.3g}"
    figure = blank("Privacy spent", "round", "epsilon", f"Epsilon is {most:.3g} after the last round; {apart}.", theme)
    line(figure, curve, "epsilon", "most of any client", 0)
    if most != least:
        line(figure, curve, "epsilon_least", "least of any client", 1)
    figure.update_yaxes(rangemode="tozero", hoverformat=".3g")
    return figure


def epsilon_of_clients(record: RunRecord, theme: Theme = "light") -> Any:
    """How many clients have which epsilon, cluster by cluster. None without privacy."""
    if not record.epsilon:
        return None
    table = record.clients
    known = {} if table is None else dict(zip(table.ids.tolist(), table.cluster.tolist(), strict=True))
    values = np.array(list(record.epsilon.values()))
    cluster = np.array([known.get(client, -1) for client in record.epsilon])
    edges = np.unique(values.round(6))
    if len(edges) > CLIENT_BARS:
        edges = np.linspace(values.min(), values.max(), CLIENT_BARS)
    place = np.abs(values[:, None] - edges[None]).argmin(1)
    figure = blank(
        "Privacy spent by client",
        "epsilon",
        "clients",
        f"{len(values):,} clients; epsilon is between {values.min():.3g} and {values.max():.3g}.",
        theme,
    )
    for row, number in enumerate(sorted(set(cluster.tolist()))):
        count = np.bincount(place[cluster == number], minlength=len(edges))
        name = f"cluster {number}" if number >= 0 else "no cluster"
        figure.add_bar(x=[f"{edge:.3g}" for edge in edges], y=count, name=name, marker=bar_marker(row))
    figure.update_layout(barmode="stack", bargap=0.1, showlegend=True)
    figure.update_xaxes(type="category")
    return figure
