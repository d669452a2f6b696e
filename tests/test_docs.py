"""What the documentation says is true of the code: pages, examples, names."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import coterie
from conftest import few
from coterie.core.registry import METHODS
from coterie.training.build import build
from coterie.training.config import read

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_generated_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import pages
    finally:
        sys.path.remove(str(ROOT / "docs"))
    wanted = pages.pages()
    assert len(wanted) == len(METHODS.places) + 3
    docs = ROOT / "docs"
    there = {str(page.relative_to(docs)) for folder in ("methods", "data") for page in (docs / folder).glob("*.md")}
    assert there == set(wanted)
    for name, text in wanted.items():
        assert (ROOT / "docs" / name).read_text() == text, f"run python docs/pages.py ({name})"


@pytest.mark.parametrize("example", few(EXAMPLES, ROOT / "examples" / "own_method.py"), ids=lambda path: path.stem)
def test_an_example_runs_and_is_short(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(example.read_text().splitlines()) < 50
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert "accuracy" in said or "MAE" in said


def test_the_yaml_example_builds() -> None:
    config = read(ROOT / "examples" / "wecfl-cnn.yaml")
    assert type(build(config).method).__name__ == "WeCFL"


def test_the_documented_configuration_is_the_default_one() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    block = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    import yaml

    # Every key that the page shows exists, and every value it shows is accepted.
    shown = read(None, base=yaml.safe_load(block.group(1)))
    assert shown.dump()["local"] | {"shuffle": True} == read(None).dump()["local"] | {"shuffle": True}
    assert shown.settings == read(None).settings


def test_every_public_name_is_there() -> None:
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = coterie.nothing


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_number_of_the_readme_comes_from_results() -> None:
    """Runs made since are a reason to write its rows anew: `show.in_readme`."""
    from papers.results import Results
    from papers.show import in_readme
    from papers.standing import standing
    from papers.tables import table

    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| \[([a-z0-9-]+)\]\(docs/results\.md#\1\) \|.*$", text, re.MULTILINE)
    assert len(rows) == 8
    for name in rows:
        assert in_readme(standing(table(name), Results(ROOT / "results"))) in text.splitlines(), name


def test_results_page_is_of_the_results_that_are_there() -> None:
    """Cells that were run since are a reason to render it anew: python -m papers --report."""
    from papers.results import Results
    from papers.standing import standing
    from papers.tables import TABLES

    text = (ROOT / "docs" / "results.md").read_text()
    for found in (standing(table, Results(ROOT / "results")) for table in TABLES):
        if found.done:
            own = found.table.own_page
            place = f"#{found.table.name}" if own is None else own.file
            assert f"({place}) | {found.done} of {len(found.lines)} |" in text, found.table.name
