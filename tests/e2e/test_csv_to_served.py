"""docs/csv-to-served.md, done as it is written: real processes, a real port, the outputs that the page shows."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from doc_blocks import ROOT, blocks, commands

PAGE = ROOT / "docs" / "csv-to-served.md"


def coterie(*words: str, at: Path) -> str:
    command = [sys.executable, "-m", "coterie.tools.cli.main", *words]
    done = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_page_holds_from_the_table_to_an_answer(tmp_path: Path) -> None:
    page = list(blocks(PAGE))
    (script,) = (block.text for block in page if block.language == "python")
    (tmp_path / "make_data.py").write_text(script)
    subprocess.run([sys.executable, "make_data.py"], cwd=tmp_path, check=True)
    words = [line for block in page if block.language == "sh" for line in commands(block)]
    said = {line[1]: coterie(*line[1:], at=tmp_path) for line in words if line[0] == "coterie" and line[1] != "api"}
    assert "The 30 clients form 2 clusters" in said["inspect"]
    assert "15 clients" in said["clusters"]
    places = {line.split()[0]: line.split()[1] for line in said["assign"].splitlines() if re.match(r"m\d\d ", line)}
    assert len(places) == 6
    assert {places[f"m{n}"] for n in (30, 32, 34)}.isdisjoint({places[f"m{n}"] for n in (31, 33, 35)})
    with (tmp_path / "new.csv").open() as truth, (tmp_path / "predictions.csv").open() as found:
        right = [
            a["state"] == b["prediction"] for a, b in zip(csv.DictReader(truth), csv.DictReader(found), strict=True)
        ]
    assert sum(right) > 0.9 * len(right)
    assert {file.name for file in (tmp_path / "models").iterdir()} >= {"cluster-0.onnx", "cluster-1.onnx"}
    (served,) = (line for line in words if line[:2] == ["coterie", "api"])
    (asked,) = (line for line in words if line[0] == "curl")
    answer = answer_of(served[2], json.loads(asked[2]), tmp_path)
    assert answer["classes"] == ["fine", "wear"]
    assert answer["probabilities"][0][1] > 0.9


def answer_of(run: str, body: object, at: Path) -> dict[str, Any]:
    """What `coterie api` answers, on a port that is free."""
    command = [sys.executable, "-m", "coterie.tools.cli.main", "api", run, "--port", "0"]
    with subprocess.Popen(command, cwd=at, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            where = next(m[0] for line in process.stdout if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
            answer = httpx.post(f"{where}/predict", json=body, timeout=60)
            assert answer.status_code == 200
            found: dict[str, Any] = answer.json()
            return found
        finally:
            process.terminate()
