"""Runs that validate: rounds are drawn by their validation scores, and the test score is told as what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import runs

from coterie.tools.report import figures
from coterie.tools.report.figures_rounds import score
from coterie.tools.report.figures_runs import compare_curves, final_scores
from coterie.tools.report.live import Runs
from coterie.tools.report.page import key_figures, overview, render, standings, worst
from coterie.tools.report.ranking import group, rank
from coterie.tools.report.record import read_run, read_summary
from coterie.training import status
from coterie.training.config import read
from coterie.training.evaluation import ScoredSplit
from coterie.training.execute import execute


def traces(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


def test_the_curve_is_of_validation_and_the_test_score_is_one_point(tmp_path: Path) -> None:
    record = read_run(runs.validated(tmp_path))
    figure = score(record)
    found = traces(figure)
    assert (list(found["all clients (validation)"].x), list(found["all clients (validation)"].y)) == (
        [1, 2, 3],
        [0.5, 0.6, 0.8],
    )
    assert (list(found["all clients (test)"].x), list(found["all clients (test)"].y)) == ([3], [0.7])
    assert {"cluster 0 (validation)", "middle 80 % of clients (validation)"} <= set(found)
    assert figures.words(figure) == (
        "Validation accuracy from 50.0 % in round 1 to 80.0 % in round 3; best 80.0 %; test accuracy 70.0 %, after the "
        "last round."
    )
    agreed = traces(figures.agreement(record))
    assert (list(agreed["ARI (validation)"].y), list(agreed["ARI (test)"].y)) == ([0.5] * 3, [1.0])
    boxes = key_figures(record)
    assert ("test accuracy", "70.0 %") in boxes
    assert ("validation accuracy", "80.0 %") in boxes
    assert "all clients (validation)" in render([record])


def test_a_run_under_way_is_drawn_before_it_is_tested(tmp_path: Path) -> None:
    path = runs.validated(tmp_path, last=None)
    record = read_run(path)
    assert not record.regression
    assert set(traces(score(record))) >= {"all clients (validation)"}
    assert "all clients (test)" not in traces(score(record))
    assert "test accuracy" not in dict(key_figures(record))
    summary = read_summary(path)
    assert (summary.accuracy, summary.scored_on) == (0.8, "validation")
    [(line, _)] = Runs(tmp_path).look().values()
    assert (line.accuracy, line.scored_on) == (0.8, "validation")


def test_a_loss_over_decades_has_a_logarithmic_axis_by_the_test_score_too(tmp_path: Path) -> None:
    path = runs.validated(tmp_path)
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    assert score(read_run(path), "loss").layout.yaxis.type is None
    lines[-1]["loss"] = 5000.0
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert score(read_run(path), "loss").layout.yaxis.type == "log"


def test_several_runs_are_compared_by_validation_over_rounds_and_by_test_in_the_end(tmp_path: Path) -> None:
    paths = [runs.validated(tmp_path / f"v{seed}", 0.6 + 0.1 * seed, seed) for seed in (0, 1)]
    records = [read_run(path) for path in (*paths, runs.write(tmp_path / "plain", runs.config(k=3)))]
    groups = group(records)
    curves = traces(compare_curves(groups))
    [name] = [name for name in curves if name and "(validation)" in name]
    assert list(curves[name].x) == [1, 2, 3]
    np.testing.assert_allclose(curves[name].y, [0.5, 0.6, 0.8])
    assert final_scores(groups).layout.title.text == "Last test accuracy of every seed"
    best, second = rank(groups)
    assert (best.accuracy and best.accuracy.mean, best.validation_accuracy) == (0.75, None)
    assert second.accuracy is not None
    assert second.validation_accuracy is not None
    np.testing.assert_allclose([second.accuracy.mean, second.validation_accuracy.mean], [0.65, 0.8])
    assert "validation accuracy" in standings([best, second]).columns
    assert "validation accuracy" in overview(records).columns


def test_runs_that_were_never_tested_are_ranked_by_validation(tmp_path: Path) -> None:
    low = read_run(runs.validated(tmp_path / "low", None, scores=(0.1, 0.2)))
    high = read_run(runs.validated(tmp_path / "high", None, scores=(0.1, 0.3, 0.4)))
    (tmp_path / "high" / "config.yaml").write_text("rounds: 3\nvalidation: 0.2\ndata: {name: toys}\nmethod: ifca\n")
    high = read_run(tmp_path / "high")
    best, second = rank(group([low, high]))
    assert (best.label, best.verdict, best.accuracy) == ("ifca", "best on validation samples", None)
    assert second.rank == 2.0
    assert final_scores(group([low, high])).layout.title.text == "Last validation accuracy of every seed"
    tested = read_run(runs.validated(tmp_path / "tested", 0.1, scores=(0.1,)))
    (tmp_path / "tested" / "config.yaml").write_text("rounds: 1\nvalidation: 0.2\ndata: {name: toys}\nmethod: cfl\n")
    first, *others = rank(group([low, high, read_run(tested.path)]))
    assert (first.label, first.verdict) == ("cfl", "best")  # validation and test scores are not compared
    assert [standing.verdict for standing in others] == ["not tested yet"] * 2


def test_other_runs_have_no_word_of_it(tmp_path: Path) -> None:
    record = read_run(runs.write(tmp_path))
    assert record.curve.validation is None
    said = f"{key_figures(record)} {overview([record])} {standings(rank(group([record])))}"
    assert "validation" not in said
    assert "test accuracy" not in said
    for picture in figures.of_run(record):
        assert "validation" not in picture.figure.to_json()
        assert "(test)" not in picture.figure.to_json()


def test_clients_say_which_samples_they_were_scored_on(tmp_path: Path) -> None:
    """Trials of a sweep look at no test samples; files of before do not say, and are of test samples."""
    config = read(None, ["rounds=1", "validation=0.2", "data.partition.clients=4", "local.epochs=1"])
    both: tuple[tuple[ScoredSplit, str], ...] = (("val", "validation"), ("test", "test"))
    for final, said in both:
        path = tmp_path / final
        execute(config, path, final_split=final)
        rows = json.loads((path / "clients.json").read_text())
        assert [row["scored_on"] for row in rows] == [said] * 4
        record = read_run(path)
        listed = worst(record)
        assert listed is not None
        assert f"{said} samples" in listed.columns
        assert ("on validation samples" in listed.caption) == (final == "val")
    older = read_run(runs.write(tmp_path / "older"))
    listed = worst(older)
    assert listed is not None
    assert "test samples" in listed.columns


def test_a_run_that_stopped_early_is_done(tmp_path: Path) -> None:
    runs.write(tmp_path, runs.config(rounds=9) | {"validation": 0.2, "stop_after": 1})
    assert read_run(tmp_path).status == "running"
    status.write(tmp_path, "done")
    assert (read_run(tmp_path).status, read_summary(tmp_path).status) == ("done", "done")
