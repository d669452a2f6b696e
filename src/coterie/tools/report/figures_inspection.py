"""Figures of an inspection: how well 1, 2, ... clusters predict, who would merge with whom, how sure the number is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.insight.inspect import Inspection, Place, answer, compared
from coterie.tools.report.figures import Picture
from coterie.tools.report.figures_style import OTHERS, Theme, bar_marker, blank, colour, percent, plain, thin
from coterie.tools.report.page import Head, Page, Section, Table, clipped
from coterie.tools.report.reading import Floats

CLIENTS = 500  # in the table, the least certain first
LABELLED = 60  # clients up to which the dendrogram names each


def risk_curve(found: Inspection, theme: Theme = "light") -> Any:
    """The risk of 1, 2, ... clusters, with a standard error, and the number that was taken."""
    risks, errors = np.asarray(found.risks), np.asarray(found.errors)
    some = thin(len(risks))
    k = np.arange(1, len(risks) + 1)[some]
    best = int(risks.argmin()) + 1
    figure = blank(
        "Risk by number of clusters",
        "clusters",
        "risk (one cluster = 1)",
        f"The risk is least with {best} cluster{'s' * (best != 1)}; {found.k} is the fewest within one standard error.",
        theme,
    )
    figure.add_scatter(
        x=k,
        y=risks[some],
        error_y={"type": "data", "array": errors[some], "thickness": 1, "width": 2, "color": colour(OTHERS)},
        mode="lines+markers" if len(k) <= 80 else "lines",
        line={"color": colour(0)},
        name="risk ± standard error of the difference to the least",
    )
    figure.add_scatter(
        x=[found.k],
        y=[risks[found.k - 1]],
        mode="markers",
        marker={"color": colour(3), "size": 13, "symbol": "diamond"},
        name=f"taken: {found.k}",
    )
    figure.update_xaxes(type="log" if len(risks) > 100 else "linear", rangemode="tozero")
    return figure


def certainty(found: Inspection, theme: Theme = "light") -> Any:
    """How often resampled clients show each number of clusters."""
    counts = sorted(found.resampled.counts)
    k, share = found.resampled.counts[0]
    figure = blank(
        "How sure the number is",
        "clusters",
        "share of bootstrap resamples",
        f"{percent(share)} of the resamples of clients show {k} cluster{'s' * (k != 1)}, more than any other number.",
        theme,
    )
    shares = [share for _, share in counts]
    figure.add_bar(x=[str(k) for k, _ in counts], y=shares, marker=bar_marker(0), showlegend=False)
    figure.update_xaxes(type="category")
    figure.update_yaxes(range=[0, 1], tickformat=".0%")
    return figure


def dendrogram(found: Inspection, theme: Theme = "light") -> Any:
    """Ward's tree of the clients, clusters in colours; the height is the root of what a merge costs."""
    x, lines = _layout(found)
    figure = blank(
        "Who would merge with whom",
        "",
        "distance at the merge",
        f"Ward's tree of {len(found.places):,} clients by both halves of their updates, cut into {found.k} "
        f"cluster{'s' * (found.k != 1)}.",
        theme,
        height=460,
    )
    for cluster in sorted(lines, key=lambda c: (c == OTHERS, c)):
        name = "between clusters" if cluster == OTHERS else f"cluster {cluster}"
        xs = [value for line in lines[cluster] for value in (*line[0], None)]
        ys = [value for line in lines[cluster] for value in (*line[1], None)]
        width = 1.5 if len(found.places) <= 200 else 1
        figure.add_scatter(
            x=xs, y=ys, mode="lines", line={"color": colour(cluster), "width": width}, name=name, hoverinfo="skip"
        )
    called = [str(place.client) if place.name is None else place.name for place in found.places]
    marks = {"color": [colour(place.cluster) for place in found.places], "size": 6}
    figure.add_scatter(
        x=x,
        y=np.zeros(len(x)),
        mode="markers",
        marker=marks,
        text=[f"{plain(name)}, cluster {place.cluster}" for name, place in zip(called, found.places, strict=True)],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )
    few = len(x) <= LABELLED
    figure.update_xaxes(
        showgrid=False, zeroline=False, showticklabels=few, tickvals=x if few else [], tickangle=-90 if few else 0
    )
    if few:
        figure.update_xaxes(ticktext=[plain(name, 24) for name in called])
    figure.update_layout(showlegend=1 < found.k <= 12)
    return figure


def _layout(found: Inspection) -> tuple[Floats, dict[int, list[tuple[Sequence[float], Sequence[float]]]]]:
    """Where each client is (n,), and the lines of each cluster (OTHERS: of merges between clusters)."""
    many = len(found.places)
    leaves = {i: [i] for i in range(many)}
    root = list(range(many))
    merges = []
    for low, high in found.tree:
        i, j = root[low], root[high]
        merges.append((i, j))
        leaves[i] = leaves[i] + leaves.pop(j)
        for leaf in leaves[i]:
            root[leaf] = i
    order = next(iter(leaves.values()))
    x = np.empty(many)
    x[order] = np.arange(many)
    at, height = dict(enumerate(x.tolist())), dict.fromkeys(range(many), 0.0)
    lines: dict[int, list[tuple[Sequence[float], Sequence[float]]]] = {}
    tops = np.sqrt(np.maximum.accumulate(np.asarray(found.heights))) if found.heights else np.empty(0)
    for step, ((i, j), top) in enumerate(zip(merges, tops.tolist(), strict=True)):
        cluster = found.places[i].cluster if step < many - found.k else OTHERS
        lines.setdefault(cluster, []).append(((at[i], at[i], at[j], at[j]), (height[i], top, top, height[j])))
        at[i], height[i] = (at[i] + at[j]) / 2, top
    return x, lines


def render(found: Inspection, commands: Sequence[str]) -> str:
    """An inspection as one HTML file: the answer, the figures, and a table of the clients."""
    head, *rest = answer(found)
    page = Page(head, Head(lines=rest))
    told = [(line, advice.reason) for line, advice in zip(commands, found.advice, strict=True)]
    pictures = (
        Picture("dendrogram", "Clusters", dendrogram(found)),
        Picture("risk", "Clusters", risk_curve(found)),
        Picture("certainty", "Clusters", certainty(found)),
    )
    page.sections += [
        Section("What follows", "what-follows", commands=told),
        Section("Clusters", "clusters", charts=[page.chart("clusters", picture) for picture in pictures]),
    ]
    lines = [clipped(line) for line in compared(found)]
    if lines:
        page.sections.append(Section("What distinguishes the clusters", "what-distinguishes-the-clusters", lines=lines))
    page.sections.append(Section("Clients", "clients", table=_clients(found)))
    return page.html()


def _clients(found: Inspection) -> Table:
    numbers = ("cluster", "samples", "margin", "next cluster")
    order = sorted(found.places, key=lambda place: (math.inf if place.margin is None else place.margin, place.client))
    rows = [_row(place) for place in order[:CLIENTS]]
    more = f"; {len(order) - CLIENTS} clearer ones are left out" if len(order) > CLIENTS else ""
    caption = f"The least certain first; margins are in deviations of a client's noise{more}"
    return Table(caption, ["client", *numbers, "kind"], rows, frozenset(numbers))


def _row(place: Place) -> list[str]:
    kinds = {"alone": place.alone, "doubtful": place.doubtful, "typical": place.typical}
    return [
        clipped(place.client if place.name is None else place.name, 120),
        str(place.cluster),
        f"{place.samples:,}",
        "-" if place.margin is None else f"{place.margin:.1f}",
        "-" if place.runner_up is None else str(place.runner_up),
        ", ".join(kind for kind, is_ in kinds.items() if is_),
    ]
