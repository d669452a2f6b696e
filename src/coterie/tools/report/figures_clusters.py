"""What happened to the clusters of a run, and when: counted by a rule, split, merged; and how many clients moved."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.core.text import counted, listing
from coterie.tools.report.figures_rounds import large_clusters
from coterie.tools.report.figures_style import (
    COLOURS,
    OTHERS,
    Theme,
    area,
    blank,
    colour,
    plain,
    see_through,
    symbol,
    thin,
)
from coterie.tools.report.reading import Floats, Ints
from coterie.tools.report.record import RunRecord

Change = Literal["split", "merged", "counted", "drift"]
KINDS: tuple[Change, ...] = ("split", "merged", "counted", "drift")
NAMED = 6  # clusters in one sentence
COLUMNS = 5  # rounds in the figure of moves


@dataclass(frozen=True)
class Happening:
    """Something that happened to clusters in a round, and why or how, in words."""

    round: int
    kind: Change
    reason: str


def happenings(record: RunRecord) -> list[Happening]:
    """What rules wrote down, with their reasons; splits and merges are seen from who was where, of every method."""
    found = [Happening(one.round, "drift" if one.rule == "drift" else "counted", str(one)) for one in record.recounts]
    trail = record.trail
    if trail is not None:
        known = carried(trail.cluster)
        for step in np.flatnonzero(moves_by_round(trail.cluster)).tolist():
            found += _steps(int(trail.round[step + 1]), known[step], known[step + 1])
    return sorted(found, key=lambda one: (one.round, KINDS.index(one.kind)))


def _steps(round_: int, before: Ints, after: Ints) -> list[Happening]:
    """Splits and merges from one evaluated round to the next. A cluster whose clients mostly go on together under a
    new number has been renamed, which is neither."""
    both = (before >= 0) & (after >= 0)
    pairs, count = np.unique(np.stack([before[both], after[both]]), axis=1, return_counts=True)
    flows = sorted(zip(count.tolist(), *pairs.tolist(), strict=True), reverse=True)
    old, new = set(before[both].tolist()), set(after[both].tolist())
    heir, origin = dict[int, int](), dict[int, int]()  # where most of a cluster's clients went, and came from
    for _, i, j in flows:
        heir.setdefault(i, j)
        origin.setdefault(j, i)
    parts = dict[int, list[int]]()
    for j in sorted(new - old):
        if origin[j] in new or heir[origin[j]] != j:
            parts.setdefault(origin[j], []).append(j)
    size = dict(zip(*(v.tolist() for v in np.unique(after[both], return_counts=True)), strict=True))
    found = [
        Happening(round_, "split", f"cluster {i} split: new {_named([f'{j} ({size[j]} clients)' for j in found])}")
        for i, found in sorted(parts.items())
    ]
    for i in sorted(old - new):
        if heir[i] in old or origin[heir[i]] != i:
            found.append(Happening(round_, "merged", f"cluster {i} is no more: most of its clients are in {heir[i]}"))
    return found


def _named(clusters: list[str]) -> str:
    more = f" and {len(clusters) - NAMED} more" if len(clusters) > NAMED else ""
    return ", ".join(clusters[:NAMED]) + more


def carried(cluster: Ints) -> Ints:
    """(rounds, clients) the last cluster that is known of each client in each round; -1 before there is one."""
    rows = np.where(cluster >= 0, np.arange(len(cluster))[:, None], 0)
    return np.take_along_axis(cluster, np.maximum.accumulate(rows), 0)


def moves_by_round(cluster: Ints) -> Ints:
    """How many clients are in another cluster than when they were last seen: in each round but the first."""
    known = carried(cluster)
    moved: Ints = ((known[1:] != known[:-1]) & (known[:-1] >= 0)).sum(1)
    return moved


def clustered(cluster: Ints) -> Ints:
    """The rounds (positions) in which clients are in more than one cluster."""
    most = cluster.max(1, initial=-1)
    least = np.where(cluster >= 0, cluster, most[:, None]).min(1, initial=np.iinfo(np.int64).max)
    return np.flatnonzero(most > least)


def busiest(moved: Ints, most: int = COLUMNS) -> Ints:
    """At most so many rounds (positions): the first, the last, and those after and before the largest moves."""
    chosen = {0, len(moved)}
    for step in np.argsort(-moved, kind="stable")[: np.count_nonzero(moved)].tolist():
        for one in (step + 1, step):  # the round after it first: without it the move would not be seen
            if len(chosen) < most:
                chosen.add(one)
    return np.array(sorted(chosen))


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


MARKS = 40  # rounds that are marked in the stream
TOLD, LINES = 3, 4  # happenings of one kind in one round that are told one by one, and lines for each
TALL, PAD = 340, 8  # of the figure of moves: its height, and the room between two clusters, in pixels
GREY = "#8a8a8a"
SIGNS = {"split": "triangle-up", "merged": "triangle-down", "counted": "diamond", "drift": "x"}
LEGEND = {"split": "split", "merged": "merged", "counted": "number chosen", "drift": "drift noticed"}


def sizes(record: RunRecord, theme: Theme = "light") -> Any:
    """A stream: clients per cluster over rounds, one area upon the other, and marks where something happened to the
    clusters. None with one cluster only."""
    trail = record.trail
    if trail is None:
        return None
    clusters, others = large_clusters(trail.cluster)
    if len(clusters) < 2:
        return None
    some = thin(len(trail.round))
    counts = [(trail.cluster[some] == k).sum(1).astype(np.float64) for k in clusters]
    last = trail.cluster[-1]
    ends = listing([f"{int((last == k).sum())} in cluster {k}" for k in clusters if (last == k).any()])
    marked, left_out = _most_moved(record, happenings(record))
    figure = blank(
        "Cluster sizes over rounds",
        "round",
        f"clients ({len(trail.ids):,} watched)",
        f"Clients at the last evaluation: {ends}."
        + (f" {others} smaller clusters are drawn as one." if others else "")
        + _said(marked, left_out),
        theme,
    )
    for k, count in zip(clusters.tolist(), counts, strict=True):
        area(figure, trail.round[some], count, f"cluster {k}", k)
    if others:
        rest = (trail.cluster[some] >= 0).sum(1) - np.sum(counts, axis=0)
        area(figure, trail.round[some], rest, f"{others} other clusters", OTHERS)
    _mark(figure, marked, float((trail.cluster >= 0).sum(1).max()))
    figure.update_layout(hovermode="x unified")
    first, last_round = trail.round[[0, -1]].tolist()
    figure.update_xaxes(showgrid=False, range=[first, last_round] if first < last_round else None)
    return figure


def _most_moved(record: RunRecord, found: Sequence[Happening]) -> tuple[list[Happening], int]:
    """What happened in at most so many rounds, those with most moves, and how many rounds are left out."""
    rounds = sorted({one.round for one in found})
    if len(rounds) <= MARKS or record.trail is None:
        return list(found), 0
    moved = dict(zip(record.trail.round[1:].tolist(), moves_by_round(record.trail.cluster).tolist(), strict=True))
    kept = set(sorted(rounds, key=lambda r: -moved.get(r, 0))[:MARKS])
    return [one for one in found if one.round in kept], len(rounds) - MARKS


def _said(marked: Sequence[Happening], left_out: int) -> str:
    """The marks, in words."""
    rounds = {kind: sorted({one.round for one in marked if one.kind == kind}) for kind in KINDS}
    kinds = [
        f"{LEGEND[kind]} in round{'s' * (len(found) > 1)} {_some(found)}" for kind, found in rounds.items() if found
    ]
    more = f" ({left_out} rounds with fewer moves are not marked)" if left_out else ""
    return f" Marked: {'; '.join(kinds)}{more}." if kinds else ""


def _some(rounds: Sequence[int], most: int = 8) -> str:
    shown = [str(r) for r in rounds[:most]]
    return ", ".join(shown) + f" and {len(rounds) - most} more" if len(rounds) > most else listing(shown)


def _mark(figure: Any, marked: Sequence[Happening], top: float) -> None:
    """A line in every marked round, and a sign for each kind above the stream, with the reason to be hovered."""
    for round_ in sorted({one.round for one in marked}):
        figure.add_shape(
            type="line", x0=round_, x1=round_, y0=0, y1=top, line={"color": GREY, "width": 1.2, "dash": "dot"}
        )
    there = [kind for kind in KINDS if any(one.kind == kind for one in marked)]
    for level, kind in enumerate(there):
        of_kind = [one for one in marked if one.kind == kind]
        rounds = sorted({one.round for one in of_kind})
        figure.add_scatter(
            x=rounds,
            y=[top * (1.05 + 0.06 * level)] * len(rounds),
            mode="markers",
            name=LEGEND[kind],
            marker={"symbol": SIGNS[kind], "size": 9, "color": GREY},
            cliponaxis=False,
            customdata=[_hover([one.reason for one in of_kind if one.round == r]) for r in rounds],
            hovertemplate="%{customdata}<extra></extra>",
        )


def _hover(reasons: Sequence[str]) -> str:
    lines = [line for reason in reasons[:TOLD] for line in _lines(reason)]
    more = [f"and {len(reasons) - TOLD} more"] if len(reasons) > TOLD else []
    return "<br>".join(map(plain, lines + more))


def _lines(reason: str) -> list[str]:
    return textwrap.wrap(reason, 70, max_lines=LINES, placeholder=" …")


def moves(record: RunRecord, theme: Theme = "light") -> Any:
    """An alluvial: clusters in a few rounds, and streams of clients between them. None where nobody moved once there
    were clusters."""
    trail = record.trail
    if trail is None:
        return None
    several = clustered(trail.cluster)
    if not len(several):
        return None
    rounds, cluster = trail.round[several[0] :], trail.cluster[several[0] :]
    moved = moves_by_round(cluster)
    if not moved.sum():
        return None
    chosen = busiest(moved)
    clusters, others = large_clusters(trail.cluster)
    # Column -> a node per cluster in it; what is no large cluster is one node, and who was not there is left out.
    place = np.searchsorted(clusters, cluster[chosen])
    place[place == len(clusters)] = 0
    place = np.where(clusters[place] == cluster[chosen], place, len(clusters))
    figure = blank(
        "Who moved when",
        "",
        "",
        f"From round {rounds[0]}, when there were first several clusters, clients changed their cluster "
        f"{int(moved.sum()):,} times, last in round {rounds[1:][moved > 0][-1]}. Drawn are rounds "
        f"{listing([str(r) for r in rounds[chosen]])}: the first, the last, and those around the largest moves.",
        theme,
        height=TALL + 104,
    )
    names = [f"cluster {k}" for k in clusters] + ([f"{others} other clusters"] if others else [])
    _alluvial(figure, place, cluster[chosen] >= 0, names, [*clusters.tolist(), OTHERS], rounds[chosen])
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    figure.update_layout(margin={"l": 24, "r": 24, "t": 80, "b": 24})
    return figure


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
