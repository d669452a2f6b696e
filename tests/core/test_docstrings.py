"""Listings are read from sources, say the same as the imported classes, and import nothing heavy."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.core import docstrings, registry
from coterie.core.registry import DATASETS, METHODS, MODELS, NO_CODE, PARTITIONS, Catalogue
from coterie.data.federate import makes_clients
from coterie.data.sets.facts import OTHERS, PUBLIC

HEAVY = ("torch", "scipy", "numpy", "pandas", "plotly")  # not pydantic: newer releases of typer import it themselves


@pytest.mark.parametrize("kind", [METHODS, MODELS, PARTITIONS, DATASETS], ids=lambda kind: str(kind.kind))
def test_a_listing_says_what_the_classes_say(kind: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list(kind.entries())
    assert all(entry.summary for entry in read)

    def unreadable(*_: str) -> None:
        raise docstrings.UnreadableError

    monkeypatch.setattr(registry, "describe", unreadable)
    assert read == list(kind.entries())  # now from what is imported


def test_listing_imports_nothing_heavy() -> None:
    script = (
        "import sys; from coterie.tools.cli.main import app; "
        "[app(words, standalone_mode=False) for words in (['methods'], ['models'], ['partitions'], ['data', 'list'])]; "
        f"sys.exit(','.join(name for name in {HEAVY} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
    assert "wecfl" in done.stdout


def test_the_facts_about_data_are_those_of_their_classes() -> None:
    assert {*PUBLIC, *OTHERS} == set(DATASETS.places)
    for name in DATASETS.places:
        found = DATASETS.find(name, NO_CODE)
        if name in PUBLIC:
            assert found.spec is PUBLIC[name]
            continue
        assert not hasattr(found, "spec")
        own = any(field.name == "path" for field in dataclasses.fields(found))
        assert OTHERS[name] == ("generated" if makes_clients(found) else "your own file" if own else "embedded")


def test_a_paper_is_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.py").write_text('class A:\n    """First."""\n    paper: str = "P 1999"\n')
    (tmp_path / "two.py").write_text(
        "from coterie.one import A as Base\nclass B(Base):\n    '''Second\n\n    and more.'''\n\n"
        "class C(B):\n    pass\n\nclass D:\n    paper: str = str(4)\n\ndef made():\n    '''Third.'''\n"
    )
    monkeypatch.setattr(docstrings, "PACKAGE", tmp_path)
    assert docstrings.describe("coterie.two", "B") == docstrings.Description("Second", "P 1999")
    assert docstrings.describe("coterie.two", "C") == docstrings.Description("", "P 1999")
    assert docstrings.describe("coterie.two", "made") == docstrings.Description("Third.", "")
    for name in ("D", "E"):
        with pytest.raises(docstrings.UnreadableError):
            docstrings.describe("coterie.two", name)
