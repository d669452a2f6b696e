"""Older lines of rounds.jsonl hold the square of clusterability B; they are read as the value of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import coterie
from conftest import linear, make_federation
from coterie.tools.report.record import as_curve
from coterie.training.round_format import clusterability
from coterie.training.run_directory import read_history


@pytest.mark.parametrize(("value", "today"), [(0.25, 0.5), (4, 2.0), (None, None), ("x", "x"), (True, True)])
def test_a_line_without_a_format_holds_the_square(value: Any, today: Any) -> None:
    assert clusterability({"clusterability": value}) == today
    assert clusterability({"format": 2, "clusterability": value}) == value


def test_an_older_run_reads_as_a_new_one(tmp_path: Path) -> None:
    run = coterie.run(coterie.FedAvg(), make_federation(), linear(), rounds=2, out=tmp_path / "run")
    log = tmp_path / "run" / "rounds.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    new = [event.clusterability for event in run.history]
    assert [line["clusterability"] for line in lines] == new
    old = [{k: v for k, v in line.items() if k != "format"} for line in lines]
    old = [line | {"clusterability": line["clusterability"] ** 2} for line in old]
    log.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert [event.clusterability for event in read_history(tmp_path / "run", 2)] == pytest.approx(new)
    assert as_curve(old).clusterability.tolist() == pytest.approx(new)
