"""How the models of clients and clusters lie to each other: a map, and cosines. From the sketches of a run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.text import counted
from coterie.tools.report.figures_style import COLOURS, Theme, blank, colour, plain, symbol, thin
from coterie.tools.report.reading import Floats, Ints
from coterie.tools.report.record import RunRecord

MAPPED = 1000  # clients on the map
PAIRS = 300  # clients in the matrix of similarities
CENTERS = 60
LABEL = 24  # letters of a name on an axis
FEW = 10  # clients below which t-SNE has too little to go by, and a PCA does
LISTED = 12  # entries of a legend; also as many signs as there are


@dataclass(frozen=True, eq=False)
class Placed:
    """Clients that trained at least once: their sketches minus the mean, and what is known of each."""

    ids: Ints
    vectors: Floats
    cluster: Ints  # -1 where unknown
    hidden: Ints | None
    names: tuple[str, ...]
    score: Floats  # accuracy, or loss for a regression


def placed(record: RunRecord, most: int) -> Placed | None:
    """At most so many clients, evenly over clusters. None where fewer than two have trained."""
    sketch = record.sketch
    if sketch is None:
        return None
    rows = np.flatnonzero((sketch.round > 0) & (np.abs(sketch.vectors).sum(1) > 0))
    if len(rows) < 2:
        return None
    vectors = sketch.vectors[rows] - sketch.vectors[rows].mean(0)
    ids = sketch.ids[rows]
    cluster = _last_cluster(record, ids)
    order = np.lexsort((ids, cluster))
    order = order[thin(len(order), most)]
    ids, cluster, table = ids[order], cluster[order], record.clients
    at: dict[int, int] = {} if table is None else {c: i for i, c in enumerate(table.ids.tolist())}
    where = [at.get(c) for c in ids.tolist()]
    scores = None if table is None else (table.loss if record.regression else table.accuracy)
    hidden = None if table is None or table.hidden is None else [-1 if i is None else table.hidden[i] for i in where]
    return Placed(
        ids=ids,
        vectors=vectors[order],
        cluster=cluster,
        hidden=None if hidden is None else np.array(hidden, dtype=np.int64),
        names=tuple(record.label(c) for c in ids.tolist()),
        score=np.array([np.nan if scores is None or i is None else scores[i] for i in where], dtype=np.float64),
    )


def _last_cluster(record: RunRecord, ids: Ints) -> Ints:
    """Where each client was last seen; -1: nowhere, as it was never evaluated."""
    known: dict[int, int] = {}
    if record.trail is not None:
        known |= zip(record.trail.ids.tolist(), record.trail.cluster[-1].tolist(), strict=True)
    if record.clients is not None:
        ended = zip(record.clients.ids.tolist(), record.clients.cluster.tolist(), strict=True)
        known |= {client: cluster for client, cluster in ended if cluster >= 0 or client not in known}
    return np.array([known.get(c, -1) for c in ids.tolist()], dtype=np.int64)


def model_map(record: RunRecord, theme: Theme = "light", most: int = MAPPED) -> Any:
    """Clients by how alike their models are: a colour per found cluster, a sign per hidden one; None without any."""
    clients = placed(record, most)
    if clients is None:
        return None
    flat, way = on_a_plane(clients.vectors)
    trained = int((record.sketch.round > 0).sum()) if record.sketch is not None else 0
    clusters = np.unique(clients.cluster).tolist()
    drawn = f", {len(clients.ids):,} of {trained:,} drawn" if trained > len(clients.ids) else ""
    found = sum(k >= 0 for k in clusters)
    nowhere = (
        f" and {counted(int((clients.cluster < 0).sum()), 'client')} of no known one" if found < len(clusters) else ""
    )
    figure = blank(
        "Map of the clients' models",
        f"{way}, first axis (no unit)",
        "second axis (no unit)",
        f"{counted(int((clients.cluster >= 0).sum()), 'client')} in {counted(found, 'found cluster')}{nowhere}{drawn}; "
        f"near each other ({way}) are clients whose models point the same way.",
        theme,
        height=460 + 18 * min(LISTED, len(clusters)),
    )
    word = "loss %{customdata[2]:.4g}" if record.regression else "accuracy %{customdata[2]:.1%}"
    truth = "" if clients.hidden is None else ", hidden cluster %{customdata[3]}"
    for place, k in enumerate(clusters):
        mine = np.flatnonzero(clients.cluster == k)
        again = symbol(max(k, 0) // len(COLOURS))  # where colours begin again
        signs = again if clients.hidden is None else [symbol(int(h)) for h in clients.hidden[mine]]
        figure.add_scatter(
            x=flat[mine, 0].round(3),
            y=flat[mine, 1].round(3),
            mode="markers",
            name=f"cluster {k}" if k >= 0 else "not evaluated",
            legendgroup="found",
            showlegend=place < LISTED,
            legendgrouptitle={"text": "found (colour)"},
            marker={"color": colour(k), "symbol": signs, "size": 9, "opacity": 0.85, "line": {"width": 0}},
            customdata=[_about(clients, i) for i in mine.tolist()],
            hovertemplate=f"client %{{customdata[1]}}<br>{word}{truth}<extra>%{{fullData.name}}</extra>",
        )
    _signs(figure, clients.hidden)
    bare = {"showticklabels": False, "zeroline": False, "ticks": ""}
    figure.update_xaxes(**bare).update_yaxes(**bare)
    figure.update_layout(showlegend=True, legend={"tracegroupgap": 4})
    return figure


def _about(clients: Placed, i: int) -> list[Any]:
    score = float(clients.score[i])
    hidden = [] if clients.hidden is None else [int(clients.hidden[i])]
    return [int(clients.ids[i]), plain(clients.names[i]), None if np.isnan(score) else round(score, 4), *hidden]


def _signs(figure: Any, hidden: Ints | None) -> None:
    """Entries of the legend for hidden clusters, without points of their own."""
    if hidden is None:
        return
    for h in np.unique(hidden[hidden >= 0]).tolist()[:LISTED]:
        figure.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=f"hidden {h}",
            legendgroup="hidden",
            legendgrouptitle={"text": "hidden (shape)"},
            marker={"color": "#8a8a8a", "symbol": symbol(h), "size": 9},
        )


def on_a_plane(vectors: Floats) -> tuple[Floats, str]:
    """Rows by their direction, in two dimensions: t-SNE, or PCA where rows are few or all the same."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
    if len(rows) < FEW or len(np.unique(rows.round(9), axis=0)) < FEW:
        left, scale, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
        flat = left[:, :2] * scale[:2]
        return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1]))), "PCA"
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(rows) - 1) / 3)
    placed_: Floats = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(rows.astype(np.float32))
    return placed_.astype(np.float64), "t-SNE"


def cosines(rows: Floats) -> Floats:
    """Between every two rows; 0 for a row without direction."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    found: Floats = np.clip(unit @ unit.T, -1.0, 1.0)
    return found


def client_similarity(record: RunRecord, theme: Theme = "light", most: int = PAIRS) -> Any:
    """Cosines between clients' models, minus their mean, cluster by cluster. None without sketches."""
    clients = placed(record, most)
    if clients is None:
        return None
    table = cosines(clients.vectors)
    placed_both = (clients.cluster >= 0)[:, None] & (clients.cluster >= 0)[None]
    same = (clients.cluster[:, None] == clients.cluster[None]) & placed_both
    apart = placed_both & ~same
    np.fill_diagonal(same, False)
    within = f"{table[same].mean():.2f} on average within clusters" if same.any() else "no two clients share a cluster"
    between = f" and {table[apart].mean():.2f} between them" if apart.any() else ""
    figure = blank(
        "Similarity of the clients' models",
        "client, by found cluster",
        "client, by found cluster",
        f"Cosine similarity of {len(clients.ids)} clients' models, minus their mean: {within}{between}.",
        theme,
        height=520,
    )
    labels = _told_apart([plain(name, LABEL) for name in clients.names], clients.ids)
    _heat(figure, table, labels, "clients %{x} and %{y}: %{z:.2f}<extra></extra>")
    for border in (np.flatnonzero(np.diff(clients.cluster)) + 0.5).tolist():
        edge = {"line": {"color": "#111111", "width": 1}}
        figure.add_vline(x=border, **edge).add_hline(y=border, **edge)
    if len(labels) > 40:
        bare = {"showticklabels": False, "ticks": ""}
        figure.update_xaxes(**bare).update_yaxes(**bare)
    return figure


def _told_apart(labels: list[str], ids: Ints) -> list[str]:
    """Labels of an axis, on which no two may be the same: those that are have their numbers beside them."""
    often = Counter(labels)
    return [label if often[label] == 1 else f"{label} ({c})" for label, c in zip(labels, ids.tolist(), strict=True)]


def center_similarity(record: RunRecord, theme: Theme = "light", most: int = CENTERS) -> Any:
    """Cosines between the clusters' models, minus the mean of the clients'. None with fewer than two clusters."""
    sketch = record.sketch
    if sketch is None or len(sketch.centers) < 2:
        return None
    rows = thin(len(sketch.centers), most)
    trained = sketch.vectors[sketch.round > 0]
    table = cosines(sketch.centers[rows] - (trained if len(trained) else sketch.centers).mean(0))
    apart = table[~np.eye(len(table), dtype=bool)]
    figure = blank(
        "Similarity of the clusters' models",
        "cluster",
        "cluster",
        f"Cosine similarity between {len(table)} clusters' models, minus the mean of the clients' models: from "
        f"{apart.min():.2f} to {apart.max():.2f}.",
        theme,
        height=520,
    )
    _heat(figure, table, [str(k) for k in rows], "clusters %{x} and %{y}: %{z:.2f}<extra></extra>")
    if len(table) <= 12:
        figure.update_traces(texttemplate="%{z:.2f}")
    return figure


def _heat(figure: Any, table: Floats, labels: list[str], hover: str) -> None:
    figure.add_heatmap(
        z=table.astype(np.float32),
        x=labels,
        y=labels,
        zmin=-1,
        zmax=1,
        colorscale="RdBu_r",
        colorbar={"title": {"text": "cosine"}},
        hovertemplate=hover,
    )
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False, autorange="reversed")
