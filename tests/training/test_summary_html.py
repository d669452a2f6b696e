"""A result in a notebook, and the notebooks of examples/."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conftest import ROOT, few
from coterie.training.build import build
from coterie.training.config import read
from coterie.training.result import Result
from coterie.training.run import run
from coterie.training.summary_html import html

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def result_of(*words: str, **settings: Any) -> Result[Any]:
    job = build(read(None, ["local.epochs=1", *words]))
    return run(job.method, job.federation, job.model, **{"rounds": 3} | settings)


def rows(text: str) -> list[list[str]]:
    """The cells of every table; the text must be well-formed."""
    tree = ElementTree.fromstring(text)
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_summary_clusters_and_curve() -> None:
    result = result_of("data.partition.clients=8", "method=ifca", "method.k=3")
    text = html(result)
    found = rows(text)
    assert ["accuracy", f"{100 * (result.accuracy or 0):.1f} %"] in found
    assert ["clusters", str(result.summary.clusters)] in found
    assert ["rounds", "3"] in found
    clusters = [row for row in found if len(row) == 3]
    assert clusters[0] == ["cluster", "clients", "accuracy"]
    assert [int(row[1]) for row in clusters[1:]] == list(result.summary.sizes)
    svg = re.search(r'points="([^"]*)"', text)
    assert svg is not None
    heights = [float(point.split(",")[1]) for point in svg.group(1).split()]
    scores = [event.summary.accuracy for event in result.history if event.summary is not None]
    assert len(heights) == 3
    assert (heights[0] > heights[2]) == ((scores[0] or 0) < (scores[2] or 0))  # up is better
    assert "http" not in text  # nothing is fetched
    assert "<script" not in text


def test_the_curve_of_a_run_that_validates_is_of_validation() -> None:
    result = result_of("data.partition.clients=8", "method=ifca", "method.k=3", validation=0.2)
    text = html(result)
    scores = [event.validation.accuracy or 0 for event in result.history if event.validation is not None]
    [line] = re.findall(r'points="([^"]*)"', text)
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert len(heights) == 3
    assert (heights[0] > heights[2]) == (scores[0] < scores[2])
    assert text.count("<circle") == 1
    assert "validation accuracy by round, test as a dot" in text
    assert ["validation accuracy", f"{100 * scores[-1]:.1f} %"] in rows(text)
    assert "validation" not in html(result_of("data.partition.clients=8", "method=fedavg"))


def test_a_result_shows_itself() -> None:
    result = result_of("data.partition.clients=8", rounds=1)
    assert result._repr_html_() == html(result)


def test_regression_has_losses() -> None:
    result = result_of("data=synthetic-regression", "method=wecfl", "method.k=2", "model=linear", rounds=2)
    found = rows(html(result))
    assert ["cluster", "clients", "loss"] in found
    assert not any(row[0] == "accuracy" for row in found)


def test_a_method_without_clusters_and_a_single_round() -> None:
    text = html(result_of("data.partition.clients=8", "method=fedavg", rounds=1, newcomers=0.25))
    assert "<svg" not in text
    assert not any(len(row) == 3 for row in rows(text))
    assert any(row[0] == "newcomers" for row in rows(text))


def test_everything_is_escaped(tmp_path: Path) -> None:
    result = result_of("data.partition.clients=8", rounds=1)
    named = dataclasses.replace(result, run_dir=tmp_path / "<b>x</b>")
    assert "&lt;b&gt;x&lt;/b&gt;" in html(named)
    assert rows(html(named))


def test_a_diverged_run_can_be_shown() -> None:
    result = result_of("data.partition.clients=8", rounds=2)
    lost = dataclasses.replace(result.summary, loss=float("nan"))
    assert ["loss", "-"] in rows(html(dataclasses.replace(result, summary=lost)))


# ------------------------------------------------------------------------------------------- the notebooks


def test_there_are_two_and_outputs_are_cleared() -> None:
    nbformat = pytest.importorskip("nbformat", reason="notebooks are read with nbformat")
    assert [path.stem for path in NOTEBOOKS] == ["first-steps", "methods-side-by-side"]
    for path in NOTEBOOKS:
        book = nbformat.read(path, as_version=4)
        nbformat.validate(book)
        for cell in book.cells:
            assert cell.cell_type != "code" or (cell.outputs == [] and cell.execution_count is None)


@pytest.mark.filterwarnings("ignore")  # of the kernel's machinery; what the cells warn of is in their own process
@pytest.mark.parametrize("path", few(NOTEBOOKS, ROOT / "examples" / "first-steps.ipynb"), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="notebooks are run with nbclient")
    nbformat = pytest.importorskip("nbformat", reason="notebooks are run with nbclient")
    pytest.importorskip("ipykernel", reason="notebooks need a kernel")
    if path.stem == "methods-side-by-side":
        pytest.importorskip("plotly", reason="its pictures need plotly")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = "".join(output.get("text", "") for cell in book.cells for output in cell.get("outputs", []))
    assert "accuracy" in text
    assert not re.search("warning", text, re.IGNORECASE)
    if path.stem == "first-steps":
        placed, home = (re.search(rf"{words} +(\[.*\])", text) for words in ("placed in", "at home in"))
        assert placed is not None
        assert home is not None
        assert placed.group(1) == home.group(1)
        shown = [
            output.get("data", {}).get("text/html", "") for cell in book.cells for output in cell.get("outputs", [])
        ]
        assert sum("<svg" in text for text in shown) == 2  # both results
    else:
        figures = [
            o
            for cell in book.cells
            for o in cell.get("outputs", [])
            if "application/vnd.plotly.v1+json" in o.get("data", {})
        ]
        assert len(figures) == 4
