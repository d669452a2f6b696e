"""Who is with whom in one run: sizes over rounds, who moved when, found against hidden, soft weights against true."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.tools.report.figures_curves import large_clusters
from coterie.tools.report.figures_style import (
    OTHERS,
    Theme,
    area,
    blank,
    colour,
    listing,
    plain,
    see_through,
    symbol,
    thin,
)
from coterie.tools.report.reading import Floats, Ints
from coterie.tools.report.record import RunRecord

STEPS = 8  # rounds in the figure of moves
CELLS = 20  # clusters up to which a matrix has its numbers written in
COMPONENTS = 8
TALL, PAD = 340, 8  # of the figure of moves: its height, and the room between two clusters, in pixels


def sizes(record: RunRecord, theme: Theme = "light") -> Any:
    """Clients per cluster over rounds, one area upon the other. None with one cluster only."""
    trail = record.trail
    if trail is None:
        return None
    clusters, others = large_clusters(trail.cluster)
    if len(clusters) < 2:
        return None
    some = thin(len(trail.round))
    counts = [(trail.cluster[some] == k).sum(1).astype(np.float64) for k in clusters]
    last = trail.cluster[-1]
    ends = listing([f"{int((last == k).sum())} in cluster {k}" for k in clusters])
    figure = blank(
        "Cluster sizes over rounds",
        "round",
        f"clients ({len(trail.ids):,} watched)",
        f"Clients at the last evaluation: {ends}."
        + (f" {others} smaller clusters are drawn as one." if others else ""),
        theme,
    )
    for k, count in zip(clusters.tolist(), counts, strict=True):
        area(figure, trail.round[some], count, f"cluster {k}", k)
    if others:
        rest = (trail.cluster[some] >= 0).sum(1) - np.sum(counts, axis=0)
        area(figure, trail.round[some], rest, f"{others} other clusters", OTHERS)
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(showgrid=False)
    return figure


def moves(record: RunRecord, theme: Theme = "light") -> Any:
    """Who moved when: clusters in a few rounds, and streams of clients between them. None where nobody moved."""
    trail = record.trail
    if trail is None or len(trail.round) < 2:
        return None
    moved = ((trail.cluster[1:] != trail.cluster[:-1]) & (trail.cluster[1:] >= 0) & (trail.cluster[:-1] >= 0)).sum(1)
    if not moved.sum():
        return None
    chosen = busiest(moved)
    clusters, others = large_clusters(trail.cluster)
    # Column -> a node per cluster in it; what is no large cluster is one node, and who was not there is left out.
    place = np.searchsorted(clusters, trail.cluster[chosen])
    place[place == len(clusters)] = 0
    place = np.where(clusters[place] == trail.cluster[chosen], place, len(clusters))
    there = trail.cluster[chosen] >= 0
    last_move = trail.round[1:][moved > 0][-1]
    figure = blank(
        "Who moved when",
        "",
        "",
        f"Clients changed their cluster {int(moved.sum()):,} times in all, last in round {last_move}. "
        f"Drawn are rounds {listing([str(r) for r in trail.round[chosen]])}.",
        theme,
        height=TALL + 104,
    )
    names = [f"cluster {k}" for k in clusters] + ([f"{others} other clusters"] if others else [])
    tints = [*clusters.tolist(), OTHERS]
    _alluvial(figure, place, there, names, tints, trail.round[chosen])
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    figure.update_layout(margin={"l": 24, "r": 24, "t": 80, "b": 24})
    return figure


def busiest(moved: Ints, most: int = STEPS) -> Ints:
    """At most so many rounds (positions), closer together where more clients moved; the first and the last too."""
    rounds = len(moved) + 1
    if rounds <= most:
        return np.arange(rounds)
    activity = np.concatenate([[0.0], np.cumsum(moved + 0.02 * moved.sum() / len(moved) + 1e-9)])
    goals = np.linspace(0, activity[-1], most)
    return np.unique(np.abs(activity[None] - goals[:, None]).argmin(1))


def _alluvial(figure: Any, place: Ints, there: Any, names: list[str], tints: list[int], rounds: Ints) -> None:
    kinds, columns = len(names), len(rounds)
    flow = np.zeros((columns - 1, kinds, kinds), dtype=np.int64)  # clients, by column, from, to
    for c in range(columns - 1):
        both = there[c] & there[c + 1]
        np.add.at(flow[c], (place[c][both], place[c + 1][both]), 1)
    heights = np.zeros((columns, kinds))
    heights[:-1], heights[1:] = flow.sum(2), np.maximum(heights[1:], flow.sum(1))
    used = np.argwhere(heights)  # (column, kind), a node each
    number = {(c, k): i for i, (c, k) in enumerate(used.tolist())}
    streams = np.argwhere(flow).tolist()
    figure.add_sankey(
        arrangement="snap",
        node={
            "label": ["others" if tints[k] == OTHERS else str(tints[k]) for _, k in used],
            "color": [colour(tints[k]) for _, k in used],
            "customdata": [f"{names[k]}, round {rounds[c]}" for c, k in used],
            "x": [0.001 + 0.998 * c / (columns - 1) for c, _ in used],
            "y": middles(heights)[used[:, 0], used[:, 1]],
            "pad": PAD,
            "thickness": 16,
            "line": {"width": 0},
            "hovertemplate": "%{customdata}: %{value} clients<extra></extra>",
        },
        link={
            "source": [number[c, i] for c, i, _ in streams],
            "target": [number[c + 1, j] for c, _, j in streams],
            "value": [int(flow[c, i, j]) for c, i, j in streams],
            "color": [see_through(tints[i], 0.35 if i == j else 0.6) for _, i, j in streams],
            "hovertemplate": "%{value} clients from %{source.customdata} to %{target.customdata}<extra></extra>",
        },
    )
    for c, round_ in enumerate(rounds.tolist()):
        side = {0: "left", columns - 1: "right"}.get(c, "center")
        figure.add_annotation(
            x=c / (columns - 1), y=1.02, xref="paper", yref="paper", xanchor=side, yanchor="bottom",
            text=f"round {round_}" if c == 0 else str(round_), showarrow=False,
        )  # fmt: skip


def middles(heights: Floats) -> Floats:
    """Where nodes (columns, kinds) stand, from 0 at the top to 1: one below the other in every column, in order."""
    gap = PAD / TALL
    unit = (1 - gap * (heights.shape[1] - 1)) / heights.sum(1).max()
    tops = np.cumsum(heights * unit + gap * (heights > 0), axis=1) - heights * unit - gap * (heights > 0)
    found: Floats = np.clip(tops + heights * unit / 2, 0.001, 0.999)
    return found


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
