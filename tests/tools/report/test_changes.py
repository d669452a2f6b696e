"""Where the data of clients changes in the course of a run: in the curves, and in numbers above them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import runs

import coterie
from coterie.core.tasks import Local
from coterie.data import Drift, Rotated
from coterie.tools.report import figures
from coterie.tools.report.page import key_figures, render
from coterie.tools.report.record import RunRecord, read_run


def written(path: Path, changes: Any, **columns: list[float]) -> RunRecord:
    lines = [
        runs.ROUNDS[0] | {"round": number} | {name: values[number - 1] for name, values in columns.items()}
        for number in range(1, 1 + len(next(iter(columns.values()))))
    ]
    runs.write(path, rounds=lines)
    about = path / "run.json"
    known = json.loads(about.read_text()) if about.is_file() else {}
    about.write_text(json.dumps(known | {"changes": changes}))
    return read_run(path)


def test_changes_are_drawn_and_counted(tmp_path: Path) -> None:
    record = written(tmp_path, [3, 5], accuracy=[0.2, 0.9, 0.5, 0.7, 0.6], ari=[0.0, 1.0, 0.2, 0.95, 0.5])
    for draw in (figures.score, figures.agreement):
        assert [shape.x0 for shape in draw(record).layout.shapes] == [3, 5]
        assert [one.text for one in draw(record).layout.annotations] == ["data changes"]
    found = key_figures(record)
    assert ("mean accuracy since the data changed", "60.0 %") in found
    assert ("rounds from a change to an ARI of 0.9", "1, never") in found


@pytest.mark.parametrize("changes", [None, [], "3", ["x", None, -1, 9.5], {"a": 1}, [7]])
def test_without_changes_or_with_a_damaged_list_there_is_nothing(tmp_path: Path, changes: Any) -> None:
    record = written(tmp_path, changes, accuracy=[0.2, 0.9], ari=[0.0, 1.0])
    assert "since the data changed" not in str(key_figures(record))
    assert record.problem is None


def test_a_real_run_writes_them(tmp_path: Path) -> None:
    clients = coterie.federate("digits", Rotated(clients=8, angles=(0, 180)), drift=Drift("sudden", 3), seed=0)
    method = coterie.Oracle(local=Local(epochs=1, batch=8, lr=0.1))
    coterie.run(method, clients, "linear", rounds=4, out=tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert record.changes == (3,)
    assert "data changes" in render([record])
    coterie.run(method, clients.at(0), "linear", rounds=1, out=tmp_path / "other")
    assert "changes" not in json.loads((tmp_path / "other" / "run.json").read_text())
