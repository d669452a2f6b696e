"""The list of runs: what is read again and when, what damaged runs look like, and what an address may select."""

from __future__ import annotations

import os
import time
from pathlib import Path

import boards
import pytest
from filelock import FileLock

from coterie.tools.dashboard import listing
from coterie.tools.dashboard.listing import RunList, line_row
from coterie.tools.dashboard.selection import MOST, Selection, select
from coterie.tools.report.record import FRESH, RunSummary, read_summary
from coterie.training import status


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of runs as they are read."""
    names: list[str] = []

    def noted(path: Path) -> RunSummary:
        names.append(path.name)
        return read_summary(path)

    monkeypatch.setattr(listing, "read_summary", noted)
    return names


def test_a_line_says_what_the_run_says(tmp_path: Path) -> None:
    boards.a_run(tmp_path / "deep" / "a", method="ifca", seed=3, rounds=4, last=0.75)
    (line,) = RunList(tmp_path).look().lines.values()
    row = line_row(line)
    assert row["key"] == "deep/a"
    assert (row["method"], row["data"], row["seed"], row["done"], row["wanted"]) == ("ifca", "digits", 3, 4, 4)
    assert (row["status"], row["accuracy"], row["macro_f1"], row["clusters"], row["ari"]) == (
        "done",
        0.75,
        0.73,
        3,
        1.0,
    )
    assert row["started"] == "2026-01-02T03:04:05Z"


def test_only_what_changed_is_read_again(tmp_path: Path, read: list[str]) -> None:
    for name in "abc":
        boards.a_run(tmp_path / name)
    runs = RunList(tmp_path)
    first = runs.look()
    assert read == ["a", "b", "c"]
    assert runs.look() == first
    assert read == ["a", "b", "c"]
    boards.add_round(tmp_path / "b", 7, 0.5)
    second = runs.look()
    assert read == ["a", "b", "c", "b"]
    assert second.print != first.print
    assert second.lines["b"].summary.accuracy == 0.5


def test_a_file_of_the_same_size_is_read_again(tmp_path: Path, read: list[str]) -> None:
    run = boards.a_run(tmp_path / "a", last=0.51)
    runs = RunList(tmp_path)
    runs.look()
    log = run / "rounds.jsonl"
    log.write_text(log.read_text().replace("0.51", "0.52"))
    os.utime(log, ns=(0, log.stat().st_mtime_ns + 1))
    assert runs.look().lines["a"].summary.accuracy == 0.52


def test_runs_come_and_go(tmp_path: Path) -> None:
    runs = RunList(tmp_path)
    assert runs.look().lines == {}
    run = boards.a_run(tmp_path / "a")
    assert list(runs.look().lines) == ["a"]
    for file in run.iterdir():
        file.unlink()
    assert runs.look().lines == {}


def test_a_run_that_stands_still_is_stopped_though_no_file_changed(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    boards.add_round(boards.begin(tmp_path / "a"), 1)
    runs = RunList(tmp_path)
    assert runs.look().lines["a"].summary.status == "running"
    before, now = runs.look().print, time.time()
    monkeypatch.setattr(time, "time", lambda: now + FRESH + 1)
    assert runs.look().lines["a"].summary.status == "stopped"
    assert runs.look().print != before
    assert read == ["a"]


def test_a_run_whose_process_is_gone_has_failed_though_no_file_changed(tmp_path: Path) -> None:
    run = boards.begin(tmp_path / "a")
    boards.add_round(run, 1)
    runs = RunList(tmp_path)
    with FileLock(run / status.LOCK):
        status.write(run, "running")
        os.utime(run / "rounds.jsonl", (1, 1))
        os.utime(run / "config.yaml", (1, 1))
        assert runs.look().lines["a"].summary.status == "running"  # a long round
    line = line_row(runs.look().lines["a"])
    assert line["status"] == "failed"
    assert "ended without a message" in line["problem"]
    status.write(run, "failed", "lr: lower it")
    assert line_row(runs.look().lines["a"])["problem"] == "lr: lower it"


def test_damaged_runs_are_lines_too(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.yaml").write_text("{{{:")
    half = boards.begin(tmp_path / "half")
    boards.add_round(half, 1)
    with (half / "rounds.jsonl").open("a") as log:
        log.write('{"round": 2, "acc')
    odd = boards.begin(tmp_path / "odd")
    (odd / "run.json").write_text("[1, 2")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "blank").mkdir()
    (tmp_path / "blank" / "rounds.jsonl").touch()
    lines = RunList(tmp_path).look().lines
    assert list(lines) == ["bad", "blank", "half", "odd"]
    assert lines["bad"].summary.status == "broken"
    assert lines["bad"].summary.problem is not None
    assert lines["half"].summary.rounds_done == 1
    assert lines["odd"].started is None


def test_a_link_does_not_lead_out_of_the_directory(tmp_path: Path) -> None:
    boards.a_run(tmp_path / "outside" / "secret")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path / "outside" / "secret")
    assert RunList(inside).look().lines == {}


def test_a_name_that_is_no_text_can_be_told(tmp_path: Path) -> None:
    boards.a_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")))
    (key,) = RunList(tmp_path).look().lines
    assert key == "caf\\xe9"


@pytest.mark.parametrize(
    "search",
    ["?run=../../etc", "?run=..%2F..%2Fetc", "?run=/etc", "?run=a/../../b", "?run=a%00", "?run=./a", "?run=A", "?run="],
)
def test_an_address_selects_listed_runs_and_nothing_else(search: str) -> None:
    assert select(search, ["a", "b"]).keys == ()


def test_an_address_is_read_as_it_is_written() -> None:
    assert select("?run=b&run=x/y%20z&run=b&run=no", ["a", "b", "x/y z"]) == Selection(("b", "x/y z"), ("no",), 0)
    assert select(None, ["a"]) == select("", ["a"]) == Selection()


def test_a_selection_has_an_end() -> None:
    keys = [f"r{i}" for i in range(MOST + 5)]
    found = select("?" + "&".join(f"run={key}" for key in keys), keys)
    assert (len(found.keys), found.left_out) == (MOST, 5)
