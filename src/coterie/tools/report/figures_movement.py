"""Who moved in one run: sizes of clusters over rounds with what happened to them, and who went where."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.core.text import listing
from coterie.tools.report.figures_curves import large_clusters
from coterie.tools.report.figures_style import OTHERS, Theme, area, blank, colour, plain, see_through, thin
from coterie.tools.report.movement import KINDS, Happening, busiest, clustered, happenings, moves_by_round
from coterie.tools.report.reading import Floats, Ints
from coterie.tools.report.record import RunRecord

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
