"""Streams and alluvials, and what they mark, from records written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import runs

from coterie.tools.report import figures
from coterie.tools.report.figures_clusters import MARKS, happenings, moves_by_round
from coterie.tools.report.record import RunRecord, read_run


def written(path: Path, rows: list[list[int]], counted: dict[int, Any] | None = None) -> RunRecord:
    """A run in which these clients were in these clusters, a row per round."""
    trace: list[dict[str, Any]] = [{"ids": list(range(len(rows[0])))}]
    trace += [{"round": r, "cluster": row} for r, row in enumerate(rows, 1)]
    lines = [runs.ROUNDS[0] | {"round": r, "counted": (counted or {}).get(r, [])} for r in range(1, len(rows) + 1)]
    return read_run(runs.write(path, rounds=lines, trace=trace))


def told(record: RunRecord) -> list[tuple[int, str, str]]:
    return [(one.round, one.kind, one.reason) for one in happenings(record)]


def test_widths_sum_to_clients(tmp_path: Path) -> None:
    record = written(tmp_path, [[0] * 6, [0, 0, 0, 1, 1, 1], [0, 0, 2, 2, 1, 1], [0, 0, 2, 2, 2, 2]])
    layers = [t for t in figures.sizes(record).data if t.stackgroup]
    assert np.sum([t.y for t in layers], axis=0).tolist() == [6, 6, 6, 6]
    link, node = figures.moves(record).data[0].link, figures.moves(record).data[0].node
    begins = [node.customdata[s].split(", ")[1] for s in link.source]
    assert sorted(set(begins)) == ["round 2", "round 3"]  # from the first round with clusters on
    for round_ in set(begins):
        assert sum(v for v, b in zip(link.value, begins, strict=True) if b == round_) == 6


def test_an_absent_client_has_not_moved(tmp_path: Path) -> None:
    there = [[0, 1, 0], [0, -1, 0], [0, 1, 0]]
    assert figures.moves(written(tmp_path / "back", there)) is None
    assert moves_by_round(np.array([[0, 1], [-1, 1], [1, 1]])).tolist() == [0, 1]  # it came back elsewhere
    assert told(written(tmp_path / "still", there)) == []  # and its cluster, empty without it, is not merged


def test_splits_and_merges_are_seen_and_renamed_clusters_are_neither(tmp_path: Path) -> None:
    rows = [[0, 0, 0, 0, 1, 1], [0, 0, 2, 2, 1, 1], [0, 0, 2, 2, 0, 0], [3, 3, 2, 2, 3, 3]]
    assert told(written(tmp_path, rows)) == [
        (2, "split", "cluster 0 split: new 2 (2 clients)"),
        (3, "merged", "cluster 1 is no more: most of its clients are in 0"),
    ]


def test_recorded_reasons_are_marked_and_can_be_hovered(tmp_path: Path) -> None:
    count = {"k": 2, "rule": "halves", "clients": 4, "scores": [[1, 0.0], [2, 0.3]], "reason": "1 became <b>2</b>"}
    alarm = count | {"rule": "drift", "reason": "the loss of 2 clients has jumped", "scores": []}
    damaged = [{"k": "x"}, 7, None]
    record = written(tmp_path, [[0, 0, 1, 1], [0, 1, 1, 1]], {1: count, 2: [alarm, *damaged]})
    figure = figures.sizes(record)
    marks = {trace.name: trace for trace in figure.data if trace.mode == "markers"}
    assert list(marks) == ["number chosen", "drift noticed"]
    assert list(marks["number chosen"].x) == [1]
    assert marks["number chosen"].customdata[0] == "k = 2 by halves: 1 became &lt;b&gt;2&lt;/b&gt;"
    assert [shape.x0 for shape in figure.layout.shapes] == [1, 2]
    assert "drift noticed in round 2" in figures.words(figure)


def test_many_marks_are_bounded_to_the_rounds_of_most_moves(tmp_path: Path) -> None:
    rows = [[0, 0, 1, 1] if r % 2 else [0, 0, 0, 0] for r in range(100)]
    rows[50] = [0, 2, 0, 0]
    figure = figures.sizes(written(tmp_path, rows))
    assert len(figure.layout.shapes) == MARKS
    assert f"{99 - MARKS} rounds with fewer moves" in figures.words(figure)


def test_one_cluster_has_neither(tmp_path: Path) -> None:
    alone = written(tmp_path, [[0, 0], [0, 0]])
    assert figures.sizes(alone) is None
    assert figures.moves(alone) is None
