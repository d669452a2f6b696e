"""Who is with whom at the end of one run: found against hidden clusters, soft weights against true ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.tools.report.figures_style import Theme, blank, colour, plain, symbol, thin
from coterie.tools.report.reading import Floats
from coterie.tools.report.record import RunRecord

CELLS = 20  # clusters up to which a matrix has its numbers written in
COMPONENTS = 8


def confusion(record: RunRecord, theme: Theme = "light") -> Any:
    """How many clients of each hidden cluster are in each found one. None without hidden clusters."""
    from scipy.optimize import linear_sum_assignment

    clients = record.clients
    if clients is None or clients.hidden is None:
        return None
    hidden, row = np.unique(clients.hidden, return_inverse=True)
    found, column = np.unique(clients.cluster, return_inverse=True)
    table = np.zeros((len(hidden), len(found)), dtype=np.int64)
    np.add.at(table, (row, column), 1)
    rows, matched = linear_sum_assignment(table, maximize=True)
    # Found clusters in the order of the hidden ones they stand for, so that a good match is a diagonal.
    order = [*matched[np.argsort(rows)].tolist(), *(c for c in range(len(found)) if c not in set(matched.tolist()))]
    right = int(table[rows, matched].sum())
    figure = blank(
        "Hidden clusters and found ones",
        "found cluster",
        "hidden cluster",
        f"{right:,} of {len(clients.ids):,} clients are where the best matching of {len(found)} found clusters to "
        f"{len(hidden)} hidden ones has them.",
        theme,
    )
    figure.add_heatmap(
        z=table[:, order],
        x=[str(found[c]) for c in order],
        y=[str(h) for h in hidden],
        colorscale="Cividis",
        texttemplate="%{z}" if max(table.shape) <= CELLS else None,
        colorbar={"title": {"text": "clients"}},
        hovertemplate="hidden %{y}, found %{x}: %{z} clients<extra></extra>",
        xgap=1,
        ygap=1,
    )
    figure.update_xaxes(type="category").update_yaxes(type="category", autorange="reversed")
    return figure


def mixtures(record: RunRecord, theme: Theme = "light") -> Any:
    """Found weights of a soft method against the true ones, a sign per component. None where one of them is unknown."""
    clients = record.clients
    if clients is None or clients.shares is None or clients.mixture is None:
        return None
    truth, shares = clients.mixture, clients.shares
    pairs, error = match_components(truth, shares)
    some = thin(len(truth), 1000)
    figure = blank(
        "Mixture weights, found and true",
        "true weight (share)",
        "found weight (share)",
        f"The mean total variation between found and true weights is {error:.3f}; 0 is perfect.",
        theme,
    )
    ends = {"x": [0, 1], "y": [0, 1], "mode": "lines", "hoverinfo": "skip"}
    figure.add_scatter(**ends, name="perfect", line={"color": "#8a8a8a", "width": 1, "dash": "dot"})
    for place, (true, found) in enumerate(pairs[:COMPONENTS]):
        figure.add_scatter(
            x=truth[some, true],
            y=shares[some, found],
            mode="markers",
            name=f"distribution {true} as component {found}",
            marker={"color": colour(place), "symbol": symbol(place), "size": 8, "opacity": 0.7},
            customdata=[plain(clients.names[i]) for i in some.tolist()],
            hovertemplate="client %{customdata}: true %{x:.2f}, found %{y:.2f}<extra></extra>",
        )
    figure.update_xaxes(range=[-0.03, 1.03]).update_yaxes(range=[-0.03, 1.03])
    return figure


def match_components(truth: Floats, found: Floats) -> tuple[list[tuple[int, int]], float]:
    """Which found component stands for which distribution, paired as in `metrics.mixture_error`, and the error."""
    from scipy.optimize import linear_sum_assignment

    agreed = np.minimum(truth[:, :, None], found[:, None, :]).sum(0)
    rows, columns = linear_sum_assignment(agreed, maximize=True)
    pairs = list(zip(rows.tolist(), columns.tolist(), strict=True))
    return pairs, float(1.0 - agreed[rows, columns].sum() / len(truth))
