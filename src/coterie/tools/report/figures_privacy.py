"""What a run with differential privacy has cost its clients: round by round, and client by client."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.tools.report.figures_curves import line
from coterie.tools.report.figures_style import Theme, bar_marker, blank
from coterie.tools.report.record import RunRecord

BARS = 30  # values of epsilon that have a bar of their own


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
    if len(edges) > BARS:
        edges = np.linspace(values.min(), values.max(), BARS)
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
