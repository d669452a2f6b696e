"""Whether a clustering still fits: the tests by hand, no alarm without drift, an alarm with it, and nothing changed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie
from conftest import UNTOLD, few, raises
from coterie import Federation, Local, WeCFL
from coterie.core.errors import CoterieError
from coterie.core.registry import METHODS, NO_CODE
from coterie.serving.drift_tests import either, higher, holm, rose, too_many
from coterie.tools.cli.main import app

LOCAL = Local(steps=10, batch=16, lr=0.3)
GROUPS = [0, 1, 2] * 4


def clients(groups: list[int], n: int, seed: int) -> list[tuple[Any, Any]]:
    """Points labelled by one of three directions; a tenth of the labels is wrong."""
    rng, turns, out = np.random.default_rng(seed), [0.0, 2.1, 4.2], []
    for group in groups:
        x = rng.normal(size=(n, 2)).astype(np.float32)
        y = x @ np.array([math.cos(turns[group]), math.sin(turns[group])]) > 0
        out.append((x, (y ^ (rng.random(n) < 0.1)).astype(np.int64)))
    return out


def federation(groups: list[int], n: int = 60, seed: int = 0, names: Any = None) -> Federation:
    return Federation.from_arrays(clients(groups, n, seed), names=names, standardise=False, standardise_y=False)


# --------------------------------------------------------------------------------------------------- the tests


def test_a_loss_that_rose_by_hand() -> None:
    now = np.array([1.0, 2.0, 3.0])  # mean 2, deviation 1; of 6 samples before the mean was 1
    t = 1 / math.sqrt(1 / 3 + 1 / 6)  # sqrt(2), with 2 degrees of freedom: P(T > t) = (1 - t / sqrt(t^2 + 2)) / 2
    assert rose(now, 1.0, 6) == pytest.approx((1 - t / math.sqrt(t * t + 2)) / 2)
    assert rose(now, 1.0, 6) == pytest.approx(0.146447, abs=1e-6)
    assert rose(now, 1.0, 0) == 1.0
    assert rose(now, math.nan, 6) == 1.0
    assert rose(now[:1], 1.0, 6) == 1.0


def test_paired_differences_by_hand() -> None:
    differences = np.array([0.0, 1.0, 2.0])  # t = 1 / (1 / sqrt(3))
    t = math.sqrt(3)
    assert higher(differences) == pytest.approx((1 - t / math.sqrt(t * t + 2)) / 2)
    assert higher(differences, np.array([-1.0, -2.0, -3.0])) == higher(differences)  # it was not better off elsewhere
    assert higher(differences, differences) == pytest.approx(0.5)  # it was, and as much as now
    assert higher(np.array([1.0, 1.0])) == 0.0
    assert higher(np.array([0.0, 0.0])) == 1.0
    assert higher(np.array([1.0])) == 1.0


def test_chance_and_corrections_by_hand() -> None:
    assert too_many(0, 10, 0.05) == 1.0
    assert too_many(1, 2, 0.05) == pytest.approx(1 - 0.95**2)
    assert too_many(2, 2, 0.05) == pytest.approx(0.05**2)
    assert either(0.02, 0.5) == pytest.approx(0.04)
    assert either(0.9, 0.8) == 1.0
    # 0.01 <= 0.05/4, 0.015 <= 0.05/3, 0.04 > 0.05/2: that and all above it are not significant.
    assert holm([0.04, 0.01, 0.015, 0.041], 0.05) == [False, True, True, False]
    assert holm([], 0.05) == []


def test_p_values_are_not_too_small_where_nothing_changed() -> None:
    """The loss of a fair model is skewed: the share below 5 % and 1 % stays at or below that."""
    rng = np.random.default_rng(0)
    ps = np.array([rose(rng.exponential(size=30), float(rng.exponential(size=12).mean()), 12) for _ in range(4000)])
    assert (ps < 0.05).mean() < 0.06
    assert (ps < 0.01).mean() < 0.015


# --------------------------------------------------------------------------------------------------- the watch


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("watch") / "run"
    coterie.run(WeCFL(k=3, local=LOCAL), federation(GROUPS), "linear", rounds=8, out=run)
    return run


def test_new_samples_of_the_same_kind_are_no_drift(trained: Path) -> None:
    calls = [coterie.watch(trained, federation(GROUPS, seed=seed), alpha=0.05).drifts for seed in range(1, 11)]
    assert sum(calls) <= 2


def test_clients_that_moved_are_named_with_their_new_cluster(trained: Path) -> None:
    before = coterie.load(trained).assignments
    found = coterie.watch(trained, federation([1, *GROUPS[1:]], seed=1))
    assert found.drifts
    assert [one.client for one in found.clients if one.drifts] == [0]
    moved = found.clients[0]
    assert moved.cluster == before[0]
    assert moved.placed == before[1]
    assert moved.loss_before is not None
    assert moved.loss_now > moved.loss_before
    assert f"Client 0 of cluster {before[0]} drifts, now placed in cluster {before[1]}" in str(found)
    assert coterie.load(trained).assignments.tolist() == before.tolist()


def test_a_cluster_drifts_with_its_clients(trained: Path) -> None:
    cluster = coterie.load(trained).assignments[0]
    found = coterie.watch(trained, federation([(g + 1) % 3 if g == 0 else g for g in GROUPS], seed=1))
    assert [one.cluster for one in found.clusters if one.drifts] == [cluster]
    (drifting,) = (one for one in found.clusters if one.drifts)
    assert drifting.doubtful == drifting.clients == 4
    assert f"Cluster {cluster} drifts: 4 of 4 clients changed" in str(found)


def test_nothing_in_the_directory_changes(trained: Path) -> None:
    before = {f: f.read_bytes() for f in trained.rglob("*") if f.is_file()}
    coterie.watch(trained, federation([1, *GROUPS[1:]], seed=1))
    assert before == {f: f.read_bytes() for f in trained.rglob("*") if f.is_file()}


def test_unknown_clients_and_silent_ones_are_reported(tmp_path: Path) -> None:
    names = tuple("ABCDEF")
    result = coterie.run(WeCFL(k=3, local=LOCAL), federation(GROUPS[:6], names=names), "linear", rounds=6)
    found = coterie.watch(result, federation([0, 1, 2], seed=2, names=("B", "Z", "A")))
    assert [one.client for one in found.clients] == [0, 1]
    assert [one.name for one in found.clients] == ["A", "B"]
    assert [who for who, _ in found.unknown] == ["client 'Z'"]
    assert found.unknown[0][1] == result.assignments[1]  # Z's samples are of the second kind
    assert found.silent == 4
    assert "1 clients are not of this run" in str(found)


NEAR_CHANCE = ("fedavgm", "fedadam")  # one model for three kinds: it says as little of labels as of their opposite


@pytest.mark.parametrize("name", few(UNTOLD, "halves", "ditto", "fedem", "fedavg"))
def test_every_method_is_watched(name: str) -> None:
    import dataclasses

    fields = {f.name: f for f in dataclasses.fields(METHODS.find(name, NO_CODE))}
    params: dict[str, Any] = {n: v for n, v in {"local": LOCAL, "k": 3}.items() if n in fields}
    if "base" in fields and fields["base"].default is dataclasses.MISSING:
        params["base"] = WeCFL(k=3, local=LOCAL)
    if "base" in fields and "section" in fields:
        params["section"] = ("*bias",)  # the head of a single layer is all of it, and nothing would be left to share
    result = coterie.run(METHODS.build(name, params, NO_CODE), federation(GROUPS), "linear", rounds=6)
    same = coterie.watch(result, federation(GROUPS, seed=3))
    assert len(same.clients) == 12
    assert all(0 <= one.p <= 1 for one in same.clients)
    assert all(0 <= one.p <= 1 for one in same.clusters)
    flipped = [(x, 1 - y) for x, y in clients(GROUPS, 60, 4)]
    if name not in NEAR_CHANCE:
        assert coterie.watch(result, flipped).drifts


def test_a_client_with_too_few_samples_is_not_tested(trained: Path) -> None:
    data = [(x[:3], 1 - y[:3]) if i == 0 else (x, y) for i, (x, y) in enumerate(clients(GROUPS, 60, 1))]
    found = coterie.watch(trained, data)
    assert found.clients[0].p == 1.0
    assert not found.drifts


def test_a_regression_is_watched_in_its_own_units() -> None:
    rng = np.random.default_rng(0)

    def data(slope: float, n: int = 40) -> list[tuple[Any, Any]]:
        out = []
        for sign in (1, -1) * 3:
            x = rng.normal(size=(n, 2))
            out.append((x, 1000 * sign * slope * x[:, 0] + 10 * rng.normal(size=n)))
        return out

    result = coterie.run(WeCFL(k=2, local=Local(steps=30, batch="full", lr=0.3)), data(1.0), "linear", rounds=8)
    same = coterie.watch(result, data(1.0, 400))
    assert not same.drifts
    assert [one.loss_now for one in same.clients] == pytest.approx([100.0] * 6, rel=0.3)  # the noise's variance
    assert coterie.watch(result, data(1.5)).drifts


# ----------------------------------------------------------------------- what is suspicious, and what is not new


def test_what_is_known_is_said_where_it_is_not_enough_to_call_it_drift(trained: Path) -> None:
    data = [(x[:8], y[:8]) if i == 0 else (x, y) for i, (x, y) in enumerate(clients([1, *GROUPS[1:]], 60, 1))]
    found = coterie.watch(trained, data, alpha=1e-9)
    assert not found.drifts
    moved = found.clients[0]
    assert moved.p < 0.05
    assert (moved.suspicious, moved.drifts) == (True, False)
    assert [one.suspicious for one in found.clients] == [one.p < 0.05 for one in found.clients]
    assert str(found).startswith("No drift is shown, of 12 clients")
    loss = f"loss {moved.loss_before:.3g} to {moved.loss_now:.3g}"
    assert f"client 0 of cluster {moved.cluster} ({loss}, cluster {moved.placed} fits better, p = " in str(found)
    assert "still fits" not in str(found)
    called = coterie.watch(trained, federation([1, *GROUPS[1:]], seed=1))
    assert [one.client for one in called.clients if one.drifts and one.suspicious] == []


def test_rows_that_the_run_had_are_left_out(trained: Path) -> None:
    """A file that grows: the old rows would hide what the new ones show."""
    run = coterie.run(WeCFL(k=3, local=LOCAL), federation(GROUPS), "linear", rounds=8)
    old, new = clients(GROUPS, 60, 0), clients([1, *GROUPS[1:]], 60, 1)
    both = [(np.concatenate([a, b]), np.concatenate([c, d])) for (a, c), (b, d) in zip(old, new, strict=True)]
    alone, grown = coterie.watch(run, new), coterie.watch(run, both)
    assert (alone.left_out, grown.left_out) == (0, 12 * 60)
    assert [one.samples for one in grown.clients] == [60] * 12
    assert [one.p for one in grown.clients] == pytest.approx([one.p for one in alone.clients])
    assert grown.drifts
    assert "720 rows were left out: the run had them" in str(grown)
    nothing = coterie.watch(run, old)
    assert (nothing.left_out, nothing.clients, nothing.silent) == (720, (), 12)
    assert "Nothing could be tested" in str(nothing)
    without = coterie.watch(trained, both)  # the run's data was given in Python, and is not here
    assert (without.left_out, without.reference) == (0, False)
    assert "would not be noticed" in str(without)


def test_rows_that_repeat_themselves_are_kept_with_a_caution() -> None:
    """Of a few yes-and-no columns new rows equal old ones by chance, and what is left would be a biased choice."""
    rng = np.random.default_rng(0)

    def data() -> list[tuple[Any, Any]]:
        x = [rng.integers(0, 2, (40, 2)).astype(np.float32) for _ in range(6)]
        return [(one, one[:, i % 2].astype(np.int64)) for i, one in enumerate(x)]

    run = coterie.run(WeCFL(k=2, local=LOCAL), data(), "linear", rounds=4)
    found = coterie.watch(run, data())
    assert found.left_out == 0
    assert found.unclear == 240
    assert sum(one.samples for one in found.clients) == 240
    assert "Caution: 240 rows are equal to rows that the run was trained or tested on" in str(found)


def dated(path: Path, groups: list[int], seed: int, year: int, also: str = "") -> Path:
    """A table with the column `day`."""
    head, *rows = table(path, groups, seed).read_text().splitlines()
    rows = [f"{row},{year}-{1 + i % 12:02d}-{1 + i % 28:02d}" for i, row in enumerate(rows)]
    path.write_text("\n".join([f"{head},day", *rows, *([also] if also else [])]) + "\n", encoding="utf-8")
    return path


def test_of_rows_with_a_time_later_ones_are_new(tmp_path: Path) -> None:
    runner, run = CliRunner(), tmp_path / "run"
    first = dated(tmp_path / "first.csv", GROUPS, 0, 2024)
    words = ["data.name=csv", f"data.path={first}", "data.y=outcome", "data.client=who", "data.time=day"]
    found = runner.invoke(app, ["run", *words, "method.name=wecfl", "method.k=3", "rounds=6", "--out", str(run)])
    assert found.exit_code == 0, found.output
    old = "\n".join(first.read_text().splitlines()[1:])
    grown = dated(tmp_path / "grown.csv", [1, *GROUPS[1:]], 1, 2025, also=old)
    found = runner.invoke(app, ["watch", str(run), "--data", str(grown), "--json"])
    assert found.exit_code == 3
    document = json.loads(found.stdout)
    assert document["left_out"] == 12 * 60
    assert [one["samples"] for one in document["clients"]] == [60] * 12
    assert {one["suspicious"] for one in document["clients"]} <= {True, False}
    earlier = dated(tmp_path / "earlier.csv", GROUPS, 2, 2023)  # never seen, and of before
    nothing = runner.invoke(app, ["watch", str(run), "--data", str(earlier)])
    assert isinstance(nothing.exception, CoterieError)
    assert "720 of its rows the run had already (or later ones)" in str(nothing.exception)


def test_all_new_rows_of_a_run_whose_data_changed_by_period_are_watched(tmp_path: Path) -> None:
    runner, run = CliRunner(), tmp_path / "run"
    first = dated(tmp_path / "first.csv", GROUPS, 0, 2024)
    words = ["data.name=csv", f"data.path={first}", "data.y=outcome", "data.client=who", "data.time=day"]
    words += ["data.drift.kind=time", "data.drift.at=3", "method.name=wecfl", "method.k=3", "rounds=6"]
    found = runner.invoke(app, ["run", *words, "--out", str(run)])
    assert found.exit_code == 0, found.output
    new = dated(tmp_path / "new.csv", GROUPS, 1, 2025)
    document = json.loads(runner.invoke(app, ["watch", str(run), "--data", str(new), "--json"]).stdout)
    assert [one["samples"] for one in document["clients"]] == [60] * 12
    assert document["left_out"] == 0


# -------------------------------------------------------------------------------------------- the command line


def table(path: Path, groups: list[int], seed: int) -> Path:
    lines = ["a,b,outcome,who"]
    for name, (x, y) in zip("ABCDEFGHIJKL", clients(groups, 60, seed), strict=False):
        lines += [
            f"{row[0]:.4f},{row[1]:.4f},{'yes' if label else 'no'},{name}" for row, label in zip(x, y, strict=True)
        ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_command_says_it_and_exits_with_three(tmp_path: Path) -> None:
    runner, run = CliRunner(), tmp_path / "run"
    first = table(tmp_path / "first.csv", GROUPS, 0)
    words = ["data.name=csv", f"data.path={first}", "data.y=outcome", "data.client=who", "method.name=wecfl"]
    found = runner.invoke(app, ["run", *words, "method.k=3", "rounds=6", "--out", str(run)])
    assert found.exit_code == 0, found.output
    same = runner.invoke(app, ["watch", str(run), "--data", str(table(tmp_path / "same.csv", GROUPS, 1))])
    assert same.exit_code == 0, same.output
    assert same.stdout.startswith("No drift is shown")
    other = table(tmp_path / "other.csv", [1, *GROUPS[1:]], 1)
    found = runner.invoke(app, ["watch", str(run), "--data", str(other), "--json"])
    assert found.exit_code == 3
    document = json.loads(found.stdout)
    assert document["drifts"] is True
    assert [one["name"] for one in document["clients"] if one["drifts"]] == ["A"]
    strangers = tmp_path / "strangers.csv"
    head, *rows = other.read_text().splitlines()
    strangers.write_text("\n".join([head, *(f"{row}-new" for row in rows)]))
    lost = runner.invoke(app, ["watch", str(run), "--data", str(strangers)])
    assert isinstance(lost.exception, CoterieError)  # nobody was tested, which is not the same as no drift
    assert "Nothing could be tested" in lost.output
    first.unlink()  # without the run's data
    assert runner.invoke(app, ["watch", str(run), "--data", str(other)]).exit_code == 3


def test_alpha_is_a_probability(trained: Path) -> None:
    with raises("argument-invalid", "between 0 and 1"):
        coterie.watch(trained, federation(GROUPS), alpha=1.5)
