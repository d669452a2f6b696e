"""What changed over the rounds of one run: scores, agreement with the truth, heterogeneity, cost, who was missing."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from coterie.tools.report.figures_style import (
    CLUSTERS,
    Theme,
    blank,
    colour,
    dash,
    percent,
    plotly,
    template,
    thin,
)
from coterie.tools.report.reading import Floats, Ints
from coterie.tools.report.record import RunRecord
from coterie.tools.report.tables import Curve

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
