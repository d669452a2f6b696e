"""A run directory as values: a good one to the last number, and every kind of bad one without an exception."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import runs

from coterie.tools.report import reading
from coterie.tools.report.page import head_of, overview, worst
from coterie.tools.report.record import find_runs, read_run, read_summary


def test_good_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = read_run(runs.write(tmp_path / "a"))
    assert (record.status, record.problem) == ("done", None)
    assert (record.method, record.seed, record.rounds_wanted, record.rounds_done) == ("wecfl", 0, 3, 3)
    assert record.data == "toys, in two groups: 4 clients, 40 training samples"
    assert record.started == "2026-01-02T03:04:05Z"
    assert record.versions == {"coterie": "0.1.0"}
    assert record.seconds == 4.0
    assert record.name == f"{tmp_path.name}/a"
    assert not record.regression


def test_curve_has_nan_where_a_round_was_not_evaluated(tmp_path: Path) -> None:
    curve = read_run(runs.write(tmp_path)).curve
    np.testing.assert_array_equal(curve.round, [1, 2, 3])
    np.testing.assert_array_equal(curve.accuracy, [0.5, np.nan, 0.75])
    np.testing.assert_array_equal(curve.bytes_up, [3000, 4000, 4000])
    assert np.isnan(curve.mixture_error).all()
    assert curve.sizes == ((3, 1), (), (2, 2))
    assert curve.last_sizes == (2, 2)
    assert curve.last("discrepancy") == 0.25
    assert curve.last("mixture_error") is None
    assert [(a.round, a.client, a.reason) for a in curve.missing] == [(1, 3, "asleep")]


def test_trail_clients_and_sketch(tmp_path: Path) -> None:
    record = read_run(runs.write(tmp_path))
    assert record.trail is not None
    assert record.clients is not None
    assert record.sketch is not None
    np.testing.assert_array_equal(record.trail.cluster, [[0, 0, 0, 1], [0, 0, 1, 1]])
    assert record.trail.accuracy is not None
    np.testing.assert_array_equal(record.trail.accuracy[1], [1.0, 0.5, 0.75, np.nan])
    assert record.trail.loss is None
    assert record.clients.hidden is not None
    np.testing.assert_array_equal(record.clients.hidden, [0, 0, 1, 1])
    assert record.clients.names == ("0", "1", "2", "3")
    assert record.clients.shares is None
    assert record.newcomers is None
    assert record.sketch.centers.shape == (2, 2)


def test_regression_has_losses_and_no_accuracy(tmp_path: Path) -> None:
    rounds = [line | {"accuracy": None, "macro_f1": None} for line in runs.ROUNDS]
    trace = [runs.TRACE[0], {"round": 3, "cluster": [0, 0, 1, -1], "loss": [1.0, 2.0, 3.0, None]}]
    record = read_run(runs.write(tmp_path, rounds=rounds, trace=trace))
    assert record.regression
    assert record.trail is not None
    assert record.trail.accuracy is None
    assert record.trail.loss is not None
    np.testing.assert_array_equal(record.trail.loss, [[1.0, 2.0, 3.0, np.nan]])


def test_soft_weights_and_newcomers(tmp_path: Path) -> None:
    clients = [row | {"shares": [0.75, 0.25], "mixture": [0.5, 0.5], "name": "x"} for row in runs.CLIENTS]
    runs.write(tmp_path, clients=clients)
    (tmp_path / "newcomers.json").write_text(json.dumps([runs.CLIENTS[0] | {"client": 9}]))
    record = read_run(tmp_path)
    assert record.clients is not None
    assert record.clients.shares is not None
    assert record.clients.shares.shape == (4, 2)
    assert record.clients.names == ("x",) * 4
    assert record.newcomers is not None
    assert record.newcomers.ids.tolist() == [9]


def test_run_made_in_python_names_its_method(tmp_path: Path) -> None:
    settings = {"method": "WeCFL(k=4, local=Local(epochs=5))", "rounds": 3, "seed": 7}
    record = read_run(runs.write(tmp_path, settings))
    assert (record.method, record.seed) == ("WeCFL", 7)


@pytest.mark.parametrize(("age", "status"), [(10, "running"), (1000, "stopped")])
def test_without_clients_a_run_is_under_way_or_was_stopped(tmp_path: Path, age: int, status: str) -> None:
    runs.write(tmp_path, rounds=runs.ROUNDS[:2])
    (tmp_path / "clients.json").unlink()
    _age(tmp_path, age)
    assert read_run(tmp_path).status == read_summary(tmp_path).status == status
    assert read_run(tmp_path, fresh=5).status == "stopped"
    assert read_run(tmp_path, fresh=5000).status == "running"


def test_finished_run_that_goes_on_to_more_rounds_is_not_done(tmp_path: Path) -> None:
    runs.write(tmp_path, runs.config(rounds=10))
    assert read_run(tmp_path).status == read_summary(tmp_path).status == "running"


def test_line_cut_short_at_the_end_is_no_problem(tmp_path: Path) -> None:
    runs.write(tmp_path, runs.config(rounds=5))
    for name in ("rounds.jsonl", "trace.jsonl"):
        with (tmp_path / name).open("a") as stream:
            stream.write('{"round": 4, "asked": 4, "ans')
    record = read_run(tmp_path)
    assert (record.status, record.problem, record.rounds_done) == ("running", None, 3)
    assert read_summary(tmp_path).rounds_done == 3


def test_bad_line_in_the_middle_is_said_and_the_rest_is_read(tmp_path: Path) -> None:
    runs.write(tmp_path)
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    (tmp_path / "rounds.jsonl").write_text("\n".join([lines[0], "### not json", lines[2]]) + "\n")
    record = read_run(tmp_path)
    assert record.status == "broken"
    assert record.problem == "rounds.jsonl: 1 lines cannot be read"
    assert record.curve.round.tolist() == [1, 3]


def _remove(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def _fill(name: str, content: bytes | str) -> Callable[[Path], None]:
    raw = content.encode() if isinstance(content, str) else content

    def fill(path: Path) -> None:
        (path / name).write_bytes(raw)

    return fill


ODD = (
    '{"round": 1}\n{"round": "two"}\n{"round": true}\n{"round": 3, "missing": 7, "sizes": "x", "accuracy": "high", '
    '"loss": [1], "seconds": {}, "unscored": [1, null], "asked": 1e999, "bytes_up": 99999999999999999999999}\n[1]\n'
)
BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "config is garbage": (_fill("config.yaml", "a: [1, 2\nb: }"), "broken"),
    "config is bytes": (_fill("config.yaml", b"\xff\xfe\x00\x01"), "broken"),
    "config is a list": (_fill("config.yaml", "- 1\n- 2\n"), "broken"),
    "config is empty": (_fill("config.yaml", ""), "broken"),
    "config refers to itself": (_fill("config.yaml", "a: &a\n  b: *a\n"), "broken"),
    "config unfolds without end": (
        _fill("config.yaml", "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
            f"{y}: &{y} [{','.join([f'*{x}'] * 10)}]\n" for x, y in zip("abcdefgh", "bcdefghi", strict=True)
        )),
        "broken",
    ),
    "config has odd types": (_fill("config.yaml", "rounds: many\nseed: [1]\nmethod: 3\ndata: 2020-01-01\n"), "done"),
    "config is missing": (_remove("config.yaml"), "broken"),
    "run.json is garbage": (_fill("run.json", "{"), "broken"),
    "run.json has odd types": (_fill("run.json", '{"belongs": 1, "versions": [], "started": 3}'), "done"),
    "run.json is missing": (_remove("run.json"), "done"),
    "rounds are missing": (_remove("rounds.jsonl"), "running"),
    "rounds are of another kind": (_fill("rounds.jsonl", '{"a": 1}\n'), "broken"),
    "rounds are bytes": (_fill("rounds.jsonl", b"\x80\x81\n\x82\n"), "broken"),
    "rounds have odd types": (_fill("rounds.jsonl", ODD), "broken"),
    "rounds nest without end": (_fill("rounds.jsonl", "[" * 100_000 + "\n"), "broken"),
    "trace is garbage": (_fill("trace.jsonl", "x\ny\n"), "broken"),
    "trace has odd types": (_fill("trace.jsonl", '{"ids": 4}\n{"round": 1, "cluster": "a"}\n'), "done"),
    "trace has wrong lengths": (_fill("trace.jsonl", '{"ids": [0, 1]}\n{"round": 1, "cluster": [1]}\n'), "done"),
    "trace is missing": (_remove("trace.jsonl"), "done"),
    "clients are garbage": (_fill("clients.json", '[{"client": 0,'), "broken"),
    "clients are of another kind": (_fill("clients.json", '{"client": 0}'), "broken"),
    "clients have odd types": (
        _fill("clients.json", '[{"client": 0, "hidden": "x", "loss": "y", "shares": [1]}, {"client": 1, "shares": 2}]'),
        "done",
    ),
    "newcomers are garbage": (_fill("newcomers.json", "no"), "broken"),
    "sketch is garbage": (_fill("sketch.safetensors", b"no safetensors"), "done"),
    "sketch is missing": (_remove("sketch.safetensors"), "done"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_run_is_a_status_and_a_problem(tmp_path: Path, case: str) -> None:
    spoil, status = BAD[case]
    spoil(runs.write(tmp_path))
    record = read_run(tmp_path)
    assert record.status == status, record.problem
    assert (record.problem is not None) == (status == "broken")
    read_summary(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        for found in (read_run(path), read_summary(path)):
            assert found.status == "empty"
            assert found.problem
    file = tmp_path / "file"
    file.write_text("x")
    assert read_run(file).status == read_summary(file).status == "broken"
    assert read_run(file).problem == "this is a file, no run directory"


def test_sketch_of_wrong_shape_is_none(tmp_path: Path) -> None:
    runs.write(tmp_path)
    runs.sketch(tmp_path, np.zeros((4, 3)), np.zeros((2, 2)))
    assert read_run(tmp_path).sketch is None


def test_round_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    again = runs.ROUNDS[2] | {"accuracy": 0.9}
    curve = read_run(runs.write(tmp_path, rounds=[*runs.ROUNDS, again])).curve
    np.testing.assert_array_equal(curve.accuracy, [0.5, np.nan, 0.9])


def test_summary_is_the_end_of_the_run(tmp_path: Path) -> None:
    path = runs.write(tmp_path, rounds=[*runs.ROUNDS, runs.ROUNDS[1] | {"round": 4}])
    summary = read_summary(path)
    assert (summary.rounds_done, summary.rounds_wanted) == (4, 3)
    assert (summary.accuracy, summary.macro_f1, summary.loss, summary.ari) == (0.75, 0.7, 0.5, 1.0)
    assert (summary.clusters, summary.method, summary.data, summary.seed) == (2, "wecfl", "toys", 0)
    assert summary.changed > 0


def test_lines_from_the_end_in_small_blocks(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(json.dumps({"n": n, "pad": "x" * (n % 40)}) + "\n" for n in range(200)) + '{"n": 20')
    for block in (1, 7, 64, 10_000):
        assert [line["n"] for line in reading.lines_from_the_end(file, block)] == list(range(199, -1, -1))
    few = list(reading.lines_from_the_end(file, 16, most=200))
    assert [line["n"] for line in few] == list(range(199, 199 - len(few), -1))
    assert 0 < len(few) < 20


def test_runs_are_found_at_any_depth_and_checkpoints_are_not_searched(tmp_path: Path) -> None:
    wanted = [runs.write(tmp_path / "b" / "c"), runs.write(tmp_path / "a"), runs.write(tmp_path / "a" / "inner")]
    runs.write(tmp_path / "a" / "checkpoints")
    runs.write(tmp_path / ".hidden")
    (tmp_path / "d" / "e").mkdir(parents=True)
    assert find_runs(tmp_path) == sorted(wanted)
    assert find_runs(tmp_path / "none") == []
    assert find_runs(tmp_path / "a" / "inner") == [tmp_path / "a" / "inner"]


def _age(path: Path, seconds: int) -> None:
    when = time.time() - seconds
    for file in path.iterdir():
        os.utime(file, (when, when))


def test_warnings_and_errors_of_a_regression_are_read(tmp_path: Path) -> None:
    errors = {"rmse": 2.0, "mae": 1.5, "r2": 0.25, "constant": 6.0}
    line = runs.ROUNDS[0] | {"loss": 4.0, "accuracy": None, "macro_f1": None} | errors
    rows = [{"client": 0, "cluster": 0, "samples": 3, "loss": 4.0} | errors]
    path = runs.write(tmp_path / "run", rounds=[line], trace=[], clients=rows)
    (path / "warnings.json").write_text(json.dumps(["the error is above a constant's", 7]))
    record = read_run(path)
    assert record.warnings == ("the error is above a constant's",)
    assert [record.curve.last(key) for key in errors] == list(errors.values())
    assert record.clients is not None
    assert [float(getattr(record.clients, key)[0]) for key in errors] == list(errors.values())
    said = f"{head_of(record)} {worst(record)} {overview([record])}"
    assert said.count("the error is above a constant's") == 2
    listed = worst(record)
    assert listed is not None
    for name in ("MSE", "RMSE", "MAE", "R2", "MSE of a constant"):
        assert name in dict(head_of(record).figures)
        assert name in listed.columns
