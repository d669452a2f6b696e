"""What the package says about itself: declared dependencies, layers, one version."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "coterie"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTION = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}  # where it is not the import's name
# Which extras the files below a path may import from; everything else imports what every installation has.
EXTRAS = {
    "core/parts.py": {"transformers"},
    "data/plots.py": {"plot"},
    "data/texts.py": {"transformers"},
    "data/table.py": {"parquet"},
    "data/bridges/huggingface.py": {"huggingface"},
    "data/bridges/flower.py": {"flower-datasets"},
    "engines/ray": {"ray"},
    "network/flower": {"flower"},
    "network/certificates.py": {"flower"},
    "serving/api": {"serve"},
    "serving/export": {"onnx"},
    "serving/table_files.py": {"parquet"},
    "layers/accountant.py": {"privacy"},
    "tools/report": {"report"},
    "core/pretrained.py": {"torchvision", "transformers"},
    "tools/cli/serving.py": {"serve"},
    "tools/report/live.py": {"report", "dashboard"},
    "tools/cli/report.py": {"report", "dashboard"},
    "tools/experiments": {"sweep"},
    "tools/trackers": {"tensorboard", "mlflow", "wandb"},
}


def names(requirements: list[str]) -> set[str]:
    """Distributions that requirements name, those of an extra of ours included."""
    found: set[str] = set()
    for line in requirements:
        name = re.split(r"[^A-Za-z0-9._-]", line)[0].lower().replace("_", "-")
        if name != "coterie":
            found.add(name)
            continue
        for extra in re.findall(r"[a-z-]+", line.partition("[")[2]):
            found |= names(PROJECT["optional-dependencies"][extra])
    return found


def imported(path: Path) -> Iterator[str]:
    """Top-level packages that a file imports anywhere, except the standard library and coterie."""
    for node in ast.walk(ast.parse(path.read_text())):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module or ""]
        for module in modules:
            top = module.partition(".")[0]
            if top not in sys.stdlib_module_names and top != "coterie":
                yield top


def undeclared() -> list[str]:
    """Every import that neither the dependencies nor the extras of its place declare."""
    always = names(PROJECT["dependencies"])
    faults = []
    for path in sorted(SOURCE.rglob("*.py")):
        here = path.relative_to(SOURCE).as_posix()
        extras = set[str]().union(*(more for place, more in EXTRAS.items() if (here + "/").startswith(place + "/")))
        allowed = always | names([f"coterie[{extra}]" for extra in extras])
        for package in imported(path):
            wanted = DISTRIBUTION.get(package, package).lower().replace("_", "-")
            if wanted not in allowed:
                faults.append(f"{here} imports {package}, which pyproject.toml does not declare for it")
    return faults


def test_every_import_is_declared() -> None:
    assert undeclared() == []


def test_an_import_that_is_not_declared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROJECT, "dependencies", [d for d in PROJECT["dependencies"] if not d.startswith("scipy")])
    monkeypatch.setitem(EXTRAS, "engines/ray", set())
    faults = undeclared()
    assert any("imports scipy" in fault for fault in faults)
    assert any("imports ray" in fault for fault in faults)


def test_places_with_extras_exist() -> None:
    assert [place for place in EXTRAS if not (SOURCE / place).exists()] == []


def test_the_version_has_one_source() -> None:
    assert "version" in PROJECT["dynamic"]
    assert f'__version__ = "{coterie.__version__}"' in (SOURCE / "core" / "version.py").read_text()
    assert f"\nversion: {coterie.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{coterie.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("core/errors.py", "from coterie.training import loop"),
        ("core/errors.py", "import coterie"),  # the root knows everything, so nothing below may ask it
        ("methods/fedavg.py", "def late():\n    from coterie.client import visit"),  # hidden in a function
        ("data/dataset.py", "if False:\n    import coterie.zoo"),  # a sibling
        ("tools/__init__.py", "from coterie.testing import check_method"),  # for users only
        ("unknown.py", "X = 1"),  # a module without a layer
        ("core/errors.py", ""),
    ],
)
def test_a_wrong_import_breaks_the_layers(where: str, line: str, tmp_path: Path) -> None:
    pytest.importorskip("importlinter")
    copy = tmp_path / "coterie"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / where).open("a") as file:
        file.write(f"\n{line}\n")
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (1 if line else 0), done.stdout + done.stderr
