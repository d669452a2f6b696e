"""The command: where files go, what is printed, and mistakes in words."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import runs
import typer
from typer.testing import CliRunner

from coterie.core.errors import CoterieError
from coterie.tools.cli.report import report

app = typer.Typer()
app.command()(report)


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_one_run_has_its_page_beside_its_files(tmp_path: Path) -> None:
    run = runs.write(tmp_path / "a")
    result = invoke(run)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{run / 'report.html'}\n"
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert not list(run.glob("*.part"))


def test_several_runs_have_theirs_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs.write(tmp_path / "x" / "a")
    runs.write(tmp_path / "x" / "b", runs.config(seed=1))
    result = invoke("x", "x/a")  # the second is among the first
    assert result.stdout == "report.html\n"
    assert "<h1>2 runs, 1 configuration</h1>" in (tmp_path / "report.html").read_text()


def test_page_where_it_is_wanted(tmp_path: Path) -> None:
    run, out = runs.write(tmp_path / "a"), tmp_path / "new" / "page.html"
    assert invoke(run, "--out", out).stdout == f"{out}\n"
    assert out.is_file()
    assert not (run / "report.html").exists()


def test_empty_directory_is_reported_as_empty(tmp_path: Path) -> None:
    result = invoke(tmp_path)
    assert result.exit_code == 0
    assert 'class="status empty"' in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["none"], "none: there is no such run directory"),
        (["file"], "file: is a file; name the run's directory"),
        (["pictures"], "pictures: no run in it or below it"),
        (["a", "--out", "file/page.html"], "file/page.html: cannot be written"),
        (["a", "--format", "png"], "--format is for figures: write --figures DIR as well"),
    ],
)
def test_mistakes_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], error: str) -> None:
    monkeypatch.chdir(tmp_path)
    runs.write(tmp_path / "a")
    (tmp_path / "file").write_text("x")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_text("x")
    result = invoke(*words)
    assert isinstance(result.exception, CoterieError)
    assert error in str(result.exception)


@pytest.mark.parametrize(
    ("library", "words"), [("plotly", []), ("kaleido", ["--figures", "figures"])], ids=["plotly", "kaleido"]
)
def test_missing_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, words: list[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == library:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.chdir(tmp_path)
    runs.write(tmp_path / "a")
    monkeypatch.setattr(builtins, "__import__", without)
    result = invoke("a", *words)
    assert isinstance(result.exception, CoterieError)
    assert f"needs {library}: pip install 'coterie[report]'" in str(result.exception)


def test_without_a_browser_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from choreographer.browsers.chromium import Chromium

    monkeypatch.setattr(Chromium, "find_browser", lambda *_, **__: None)
    result = invoke(runs.write(tmp_path / "a"), "--figures", tmp_path / "f", "--format", "svg")
    assert isinstance(result.exception, CoterieError)
    assert "apt install chromium" in str(result.exception)
