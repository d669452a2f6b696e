"""Clusters kept and lost, by hand, and the figures that are drawn of cluster sizes and of clients' models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from papers.cell import Outcome, Run
from papers.figures import SCATTERED, SIZES
from papers.results import Results
from papers.tables.collapse import effective, run_of, sizes_over_rounds, used
from papers.tables.wecfl_tsne import ROUNDS, agreement, run_after, whole


def outcome(seed: int = 10, curve: Mapping[str, Sequence[Any]] | None = None, **probe: Any) -> Outcome:
    return Outcome("a/b", seed, "f", (), {}, "", {}, "", "", 1.0, None, curve or {}, probe)


class Kept:
    """Outcomes by the name of their run."""

    def __init__(self, by_run: Mapping[str, list[Outcome]]) -> None:
        self.by_run = by_run

    def of(self, run: Run) -> list[Outcome]:
        return self.by_run.get(run.name, [])


def sizes(seed: int, *over_rounds: list[int], accuracy: float = 0.5) -> Outcome:
    rounds = [2 * (i + 1) for i in range(len(over_rounds))]
    return outcome(seed, {"round": rounds, "sizes": over_rounds, "accuracy": [accuracy] * len(rounds)})


def test_clusters_in_use_and_as_many_of_equal_size() -> None:
    assert used(sizes(10, [7, 7, 7, 9], [20, 10, 0, 0])) == [2.0]
    assert effective(sizes(10, [30, 0, 0, 0])) == [1.0]
    assert effective(sizes(10, [5, 5, 5, 5])) == [4.0]
    assert effective(sizes(10, [20, 10, 0, 0])) == [pytest.approx(9 / 5)]  # 1 / (4/9 + 1/9)


def test_seeds_in_which_a_cluster_is_lost_are_counted_in_pairs() -> None:
    """Seed 12 has no partner, so it counts for neither."""
    ifca = [sizes(10, [30, 0, 0, 0]), sizes(11, [9, 8, 7, 6]), sizes(12, [30, 0, 0, 0])]
    cam = [sizes(10, [9, 8, 7, 6], accuracy=0.6), sizes(11, [10, 10, 10, 0], accuracy=0.4)]
    kept = Kept({run_of("har", "ifca").name: ifca, run_of("har", "ifca-cam").name: cam})
    lines = sizes_over_rounds(kept)
    assert any("har ifca | 30 |" in line and line.endswith("| 30, 9-8-7-6, 30 |") for line in lines)
    (said,) = [line for line in lines if line.startswith("- har")]
    assert said.startswith("- har, 2 of 10 seeds: IFCA has lost a cluster in 1, IFCA-CAM in 1; clusters +1.00")
    assert "accuracy +0.00 (above in 1, below in 1)" in said


def test_agreement_with_generating_clusters_and_clusters_that_stay_whole() -> None:
    same = outcome(truth=[0, 0, 1, 1, 2, 2], labels=[5, 5, 3, 3, 1, 1])
    assert (agreement(same), whole(same)) == ([1.0], [1.0])
    joined = outcome(truth=[0, 0, 1, 1, 2, 2], labels=[5, 5, 5, 5, 1, 1])  # coarser, but none is broken up
    assert agreement(joined)[0] < 1.0
    assert whole(joined) == [1.0]
    broken = outcome(truth=[0, 0, 1, 1], labels=[0, 1, 1, 1])
    assert whole(broken) == [0.5]


def test_a_run_that_is_ended_early_is_the_same_but_for_its_rounds() -> None:
    for t in ROUNDS:
        run = run_after("fmnist", 10, t)
        assert run.config["rounds"] == t
        assert run.config["method"] == run_after("fmnist", 10, 1).config["method"]
    assert len({run_after("fmnist", k, t).name for k in (3, 10) for t in ROUNDS}) == 10


def test_sizes_are_stacked_from_the_largest_and_models_scattered_by_cluster() -> None:
    pytest.importorskip("plotly")
    kept = {run_of("har", m).name: [sizes(10, [5, 20, 5, 0], [10, 10, 10, 0])] for m in ("ifca", "ifca-cam")}
    points: dict[str, Any] = {"x": [0.0, 1.0, 2.0], "y": [2.0, 1.0, 0.0], "labels": [0, 1, 9], "truth": [0, 1, 1]}
    kept[run_after("fmnist", 10, 2).name] = [outcome(**points)]
    results = cast("Results", Kept(kept))
    drawn: dict[str, Any] = {name: make(results) for name, _, _, make in (*SIZES, *SCATTERED)}
    assert {name for name, figure in drawn.items() if figure is not None} == {"collapse-har", "wecfl-figure7"}
    assert list(drawn["collapse-har"].data[0].y) == [20, 10]
    assert [title.text for title in drawn["collapse-har"].layout.annotations] == ["IFCA", "IFCA-CAM"]
    (panel,) = drawn["wecfl-figure7"].data
    assert list(panel.marker.symbol) == [0, 1, 9]
    assert drawn["wecfl-figure7"].layout.annotations[0].text == "round 2"
