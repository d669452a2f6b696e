"""What `coterie demo` draws and says."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from coterie.tools.cli import demo
from coterie.training.build import build
from coterie.training.config import read
from coterie.training.run import run


def printed(thing: Any, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(thing)
    return stream.getvalue()


def test_a_sparkline_is_a_character_per_value() -> None:
    assert demo.sparkline([0.0, 0.124, 0.126, 0.5, 0.99, 1.0], 0.0, 1.0) == "▁▁▂▅██"
    assert demo.sparkline([0.3, 0.3], 0.3, 0.3) == "▁▁"  # nothing to tell apart, nothing divided by zero


def test_clusters_beside_the_hidden_groups() -> None:
    found, truth = np.array([1, 1, 1, 1, 0, 1]), np.array([0, 0, 0, 0, 1, 1])
    rows = [line.split() for line in printed(demo.clusters(found, truth, False)).splitlines() if "degrees" in line]
    assert rows == [["0", "degrees", ".", "4"], ["90", "degrees", "1", "1"]]
    rows = [line.split() for line in printed(demo.clusters(found, truth, True)).splitlines() if "°" in line]
    assert rows == [["0°", ".", "████████", "4"], ["90°", "██", "1", "██", "1"]]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    words = ["data.partition.clients=8", "data.partition.angles=[0,180]", "rounds=2"]
    made = {name: build(read(None, [*words, f"method.name={name}"])) for name in demo.TOLD}
    return {name: run(job.method, job.federation, job.model, rounds=2) for name, job in made.items()}


def test_pictures_are_for_terminals_and_words_for_everyone(results: dict[str, Any]) -> None:
    stream = io.StringIO()
    demo.shown(results, Console(file=stream, width=80))
    plain = stream.getvalue()
    assert "█" not in plain
    assert "accuracy by round" not in plain
    drawn = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    demo.shown(results, Console(file=drawn, width=80, force_terminal=True, color_system=None))
    drawn.seek(0)
    picture = drawn.read()
    assert "█" in picture
    assert "accuracy by round" in picture
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    demo.shown(results, Console(file=ascii_only, width=80, force_terminal=True, color_system=None))  # raises nothing
    halves = results["halves"].summary
    match = "exactly the hidden ones" if halves.ari == 1 else f"(ARI {halves.ari:.2f})"
    assert f"Halves was told nothing and found {halves.clusters} clusters" in plain
    assert match in plain
    for result in results.values():
        assert f"{result.accuracy:.1%}".replace("%", " %") in plain


def test_what_comes_next_names_the_runs_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    report = "  coterie report 'my runs/a' 'my runs/b' --out demo.html"
    for there in (True, False):
        monkeypatch.setattr(demo, "find_spec", lambda name, there=there: there or None)
        lines = demo.further(Path("my runs"), ["a", "b"])
        assert report in lines
        assert ("  pip install 'coterie[report]'" in lines) is not there
