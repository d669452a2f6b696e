"""Rankings by hand: means, ranks, tests and Holm's correction against numbers worked out on paper."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import runs

from coterie.tools.report import ranking
from coterie.tools.report.figures_runs import compare_curves
from coterie.tools.report.record import RunRecord, read_run


def three(tmp_path: Path, name: str, scores: tuple[float, ...], first: int = 0, **method: object) -> list[RunRecord]:
    return [
        read_run(runs.score_only(tmp_path / f"{name}-{seed}", score, seed, name=name, **method))
        for seed, score in enumerate(scores, first)
    ]


def test_groups_are_configurations_without_the_seed(tmp_path: Path) -> None:
    records = three(tmp_path, "wecfl", (0.7, 0.8)) + three(tmp_path, "fedavg", (0.5,))
    found = ranking.group(records)
    assert [(g.label, len(g.runs)) for g in found] == [("wecfl", 2), ("fedavg", 1)]
    assert found[0].values("accuracy") == {0: 0.7, 1: 0.8}


def test_labels_name_what_differs_within_a_method(tmp_path: Path) -> None:
    records = [
        read_run(runs.score_only(tmp_path / "a", 0.7, 0, k=2)),
        read_run(runs.score_only(tmp_path / "b", 0.7, 0, k=4)),
        read_run(runs.score_only(tmp_path / "c", 0.7, 0, name="ifca")),
    ]
    assert [g.label for g in ranking.group(records)] == ["wecfl k=2", "wecfl k=4", "ifca"]


def test_other_rounds_are_another_configuration_and_empty_runs_none(tmp_path: Path) -> None:
    records = [read_run(runs.write(tmp_path / "a")), read_run(runs.write(tmp_path / "b", runs.config(rounds=4)))]
    assert [g.label for g in ranking.group([*records, read_run(tmp_path / "none")])] == [
        "wecfl rounds=3",
        "wecfl rounds=4",
    ]


def test_same_seed_twice_is_two_runs(tmp_path: Path) -> None:
    records = [read_run(runs.score_only(tmp_path / n, a, 1)) for n, a in (("a", 0.6), ("b", 0.8))]
    assert sorted(ranking.group(records)[0].values("accuracy").values()) == [0.6, 0.8]


def test_spread_by_hand() -> None:
    found = ranking.spread([1.0, 2.0, 4.0])
    assert found is not None
    assert found.mean == pytest.approx(7 / 3)
    assert found.std == pytest.approx(math.sqrt(7 / 3))  # (16 + 1 + 25) / 9 / 2
    assert ranking.spread([5.0]) == ranking.Spread(5.0, None, 1)
    assert ranking.spread([]) is None


def test_mean_ranks_by_hand() -> None:
    scores = [{0: 0.9, 1: 0.5, 2: 0.7}, {0: 0.8, 1: 0.6, 2: 0.7}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 1.0}]
    # Seed 0: 1 2 3; seed 1: 2 1 3; seed 2: a tie, 1.5 1.5 3. Seed 3 is one's own.
    assert ranking.mean_ranks(scores) == [pytest.approx(1.5), pytest.approx(1.5), pytest.approx(3.0)]
    assert ranking.mean_ranks(scores, higher_is_better=False)[2] == pytest.approx(1.0)
    assert ranking.mean_ranks([{0: 1.0}, {1: 1.0}]) == [None, None]


def test_paired_test_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt 3, t = 2 sqrt 3 with 2 degrees of freedom, for which
    # p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12 / 14).
    p, how = ranking.p_value({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0, 5: 0.0})
    assert p == pytest.approx(1 - math.sqrt(12 / 14))
    assert how == "paired t-test, 3 seeds"


def test_unpaired_test_where_seeds_differ() -> None:
    # Means 2 and 6, both variances 1: t = 4 / sqrt(2 / 3) = 2 sqrt 6 with 4 degrees of freedom, for which
    # P(|T| > t) = 1 - s (3 - s^2) / 2 with s = t / sqrt(4 + t^2).
    p, how = ranking.p_value({0: 1.0, 1: 2.0, 2: 3.0}, {5: 5.0, 6: 6.0, 7: 7.0})
    s = math.sqrt(24 / 28)
    assert p == pytest.approx(1 - s * (3 - s**2) / 2)
    assert how == "Welch's t-test, 3 and 3 seeds"


def test_no_test_below_three_seeds_or_without_spread() -> None:
    assert ranking.p_value({0: 1.0, 1: 2.0}, {0: 2.0, 1: 5.0}) == (None, "too few seeds")
    assert ranking.p_value({0: 1.0, 1: 2.0, 2: 3.0}, {0: 2.0, 1: 3.0, 2: 4.0}) == (None, "no spread over seeds")
    assert ranking.p_value({0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.0, 1: 2.0, 2: 3.0}) == (1.0, "equal on every seed")
    assert ranking.p_value({0: 1.0, 1: 1.0, 2: 1.0}, {5: 2.0, 6: 2.0, 7: 2.0})[0] in (None, 0.0)


def test_holm_by_hand() -> None:
    # 0.01 * 4; 0.015 * 3 = 0.045; 0.03 * 2 = 0.06; 0.04 * 1 is raised to 0.06.
    assert ranking.holm([0.04, 0.01, 0.03, 0.015]) == pytest.approx([0.06, 0.04, 0.06, 0.045])
    assert ranking.holm([0.9, 0.8]) == [1.0, 1.0]
    assert ranking.holm([]) == []


def test_ranking_best_first_with_verdicts(tmp_path: Path) -> None:
    worse = three(tmp_path, "fedavg", (0.50, 0.52, 0.51))
    best = three(tmp_path, "wecfl", (0.90, 0.91, 0.92))
    near = three(tmp_path, "ifca", (0.89, 0.93, 0.90))
    few = three(tmp_path, "ditto", (0.3,))
    found = ranking.rank(ranking.group(worse + best + near + few))
    assert [s.label for s in found] == ["wecfl", "ifca", "fedavg", "ditto"]
    assert found[0].verdict == "best"
    assert found[0].p is None
    assert found[1].verdict == "may be as good (paired t-test, 3 seeds)"
    assert found[2].verdict == "worse than the best (paired t-test, 3 seeds)"
    assert found[3].verdict == "too few seeds"
    assert found[3].p is None
    # Two tests were made, so the smaller p is doubled. Differences .40 .39 .41: t = 0.4 / (0.01 / sqrt 3) = 69.28.
    t = 0.40 / (0.01 / math.sqrt(3))
    assert found[2].p == pytest.approx(2 * (1 - t / math.sqrt(2 + t * t)))
    assert found[0].accuracy is not None
    assert found[0].accuracy.mean == pytest.approx(0.91)
    assert found[0].accuracy.std == pytest.approx(0.01)
    # Only seed 0 is shared by all four: 0.90, 0.89, 0.50, 0.3.
    assert [s.rank for s in found] == [1.0, 2.0, 3.0, 4.0]


def test_regressions_are_ranked_by_loss(tmp_path: Path) -> None:
    records = []
    for name, loss in (("ifca", 3.0), ("wecfl", 1.0)):
        rounds = [runs.ROUNDS[2] | {"accuracy": None, "macro_f1": None, "loss": loss}]
        records.append(read_run(runs.write(tmp_path / name, runs.config(name=name), rounds=rounds)))
    assert [s.label for s in ranking.rank(ranking.group(records))] == ["wecfl", "ifca"]
    assert ranking.rank([]) == []


def on(path: Path, accuracy: float, seed: int, partition: dict[str, object], method: str) -> RunRecord:
    rounds = [*runs.ROUNDS[:2], runs.ROUNDS[2] | {"accuracy": accuracy}]
    settings = runs.config(seed, name=method) | {"data": {"name": "digits", "partition": partition}}
    return read_run(runs.write(path, settings, rounds=rounds))


def test_every_data_set_has_a_ranking_of_its_own(tmp_path: Path) -> None:
    """On the harder data the best is below the worst on the easier: nobody is compared across."""
    rotated: dict[str, object] = {"name": "rotated", "clients": 8, "angles": [0, 90]}
    scores = {("rotated", "wecfl"): 0.9, ("rotated", "fedavg"): 0.8, ("iid", "wecfl"): 0.4, ("iid", "fedavg"): 0.5}
    records = [
        on(
            tmp_path / f"{where}-{method}-{seed}",
            score,
            seed,
            rotated if where == "rotated" else {"name": where},
            method,
        )
        for (where, method), score in scores.items()
        for seed in range(2)
    ]
    groups = ranking.group(records)
    assert [g.label for g in groups] == [
        *("wecfl partition=rotated", "fedavg partition=rotated"),
        *("wecfl partition=iid", "fedavg partition=iid"),
    ]
    found = ranking.rank(groups)
    assert [(s.label.split()[0], s.verdict == "best", s.rank) for s in found] == [
        *(("wecfl", True, 1.0), ("fedavg", False, 2.0)),
        *(("fedavg", True, 1.0), ("wecfl", False, 2.0)),
    ]
    assert [s.data for s in found] == ["data 1", "data 1", "data 2", "data 2"]  # their descriptions are the same
    assert [s.data for s in ranking.rank(groups[:2])] == ["", ""]


def test_of_partitions_with_one_name_what_differs_is_told(tmp_path: Path) -> None:
    parts: list[dict[str, object]] = [
        {"name": "iid"},
        {"name": "dirichlet", "alpha": 1},
        {"name": "dirichlet", "alpha": 2},
    ]
    records = [on(tmp_path / str(i), 0.5, 0, part, "fedavg") for i, part in enumerate(parts)]
    assert [g.label for g in ranking.group(records)] == [
        "fedavg partition=iid",
        "fedavg partition=dirichlet alpha=1",
        "fedavg partition=dirichlet alpha=2",
    ]


def test_runs_that_failed_are_rows_and_count_in_no_mean(tmp_path: Path) -> None:
    for seed, accuracy in enumerate((0.8, 0.9, 0.1)):
        runs.score_only(tmp_path / f"wecfl-{seed}", accuracy, seed)
    (tmp_path / "wecfl-2" / "status.json").write_text('{"state": "failed", "reason": "out of memory"}')
    lost = runs.score_only(tmp_path / "ifca", 0.99, 0, name="ifca")
    (lost / "rounds.jsonl").unlink()
    (lost / "status.json").write_text('{"state": "failed", "reason": "k: too large"}')
    groups = ranking.group([read_run(path) for path in sorted(tmp_path.iterdir())])
    good, bad = ranking.rank(groups)
    assert (good.label, good.counted, good.verdict) == ("wecfl", "2 of 3", "best; failed: out of memory")
    assert good.accuracy is not None
    assert good.accuracy.mean == pytest.approx(0.85)
    assert (bad.label, bad.counted, bad.accuracy) == ("ifca", "0 of 1", None)
    assert bad.verdict == "failed: k: too large"
    drawn = compare_curves(groups)
    assert [trace.name for trace in drawn.data if trace.name] == ["wecfl (2 seeds)"]
