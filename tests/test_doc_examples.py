"""Every Python block and every command of README and docs/ runs, in small: fewer rounds, in a directory of its own."""

from __future__ import annotations

import functools
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import coterie
from conftest import few
from coterie.core.errors import CoterieError
from coterie.training.run import run as run_a_federation
from doc_blocks import ROOT, SHOWN, Block, blocks, commands, pages

ROUNDS = 2  # at most, in an example
PAGES = {page.relative_to(ROOT).as_posix(): list(blocks(page)) for page in pages()}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OPTIONAL = {re.split(r"[^a-z_]", name)[0] for names in EXTRAS.values() for name in names}  # packages of extras
CHECKED = ("make", "pip", ".ci/run", "python", ".venv/bin/python")  # not run, but what they name must exist


def with_(language: str, mark: str, *, generated: bool = False) -> list[str]:
    """Pages that have such blocks; those written from docstrings, or the others."""
    made = [page for page in PAGES if page.startswith("docs/methods/")]
    chosen = made if generated else [page for page in PAGES if page not in made]
    return [page for page in chosen if any(b.language == language and b.mark == mark for b in PAGES[page])]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples name: configurations, tables, images, a finished run."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("prepared")
    rng = np.random.default_rng(0)
    (folder / "my.yaml").write_text("method: {name: wecfl, k: 2}\nrounds: 2\nparticipation: 0.5\n")
    x, owner = rng.normal(size=(120, 3)), np.arange(120) % 6
    table = ["age,pressure,weight,hospital,person,region,outcome,load"]
    for row, (a, b, c) in enumerate(x):
        yes, load = "yes" if a > 0 else "no", 40 + 3 * a + b
        who = f"hospital-{owner[row]},person-{owner[row]},region-{owner[row] % 2}"
        table.append(f"{a:.3f},{b:.3f},{c:.3f},{who},{yes},{load:.3f}")
    (folder / "visits.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in table) + "\n")
    later = [f"{a:.3f},{b:.3f},{c:.3f}," + table[1 + i].split(",", 3)[3] for i, (a, b, c) in enumerate(-x)]
    later = [line.replace(",yes,", ",NO,").replace(",no,", ",yes,").replace(",NO,", ",no,") for line in later]
    (folder / "later.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in [table[0], *later]) + "\n")
    new = [line.rsplit(",", 1)[0].replace("hospital-", "clinic-") for line in table]
    (folder / "new.csv").write_text("\n".join(new) + "\n")
    (folder / "people.csv").write_text("\n".join(table) + "\n")
    cities = [line.replace("hospital-0", "Bilbao") for line in table]
    (folder / "hospitals.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in cities) + "\n")
    new = [line.replace("hospital-", "clinic-") for line in table]
    (folder / "new-hospitals.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in new) + "\n")
    (folder / "unlabelled.csv").write_text("\n".join(line.rsplit(",", 2)[0] for line in new) + "\n")
    (folder / "sales.csv").write_text("\n".join(sales()) + "\n")
    (folder / "headlines.csv").write_text("\n".join(headlines()) + "\n")
    np.savez(folder / "mine.npz", x=x.astype("float32"), y=(x[:, 0] > 0).astype("int64"))
    for client in ("anna", "bert", "carl", "dora"):
        for label in ("cat", "dog"):
            place = folder / "photos" / client / label
            place.mkdir(parents=True)
            for number in range(6):
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(place / f"{number}.png")
    for name in ("fedavg", "wecfl"):
        run(
            ["run", f"method.name={name}", "rounds=1", "data.partition.clients=8", "--out", str(folder / "runs" / name)]
        )
    shutil.copytree(folder / "runs" / "wecfl", folder / "runs" / "a")
    table_words = ["data.name=csv", f"data.path={folder / 'visits.csv'}", "data.client=hospital", "data.y=outcome"]
    run(["run", *table_words, "method.name=wecfl", "method.k=2", "rounds=1", "--out", str(folder / "runs" / "visits")])
    return folder


def sales() -> list[str]:
    """A table as people have it: text, holes, dates, an identifier."""
    rng = np.random.default_rng(0)
    lines = ["sale,shop,region,price,size,promo,note,date,rating"]
    for row in range(1000):
        shop, promo = row % 40, bool(rng.random() < 0.5)
        region, size = ("north", "south", "east", "west")[shop % 4], "SML"[rng.integers(3)]
        price = rng.normal(20 + 5 * (shop % 4), 6)
        rating = int(np.clip(round(price / 8 + promo + rng.normal(0, 0.5)), 1, 5))
        note = f"note {row}" if rng.random() < 0.4 else ""
        cell = "" if rng.random() < 0.09 else f"{price:.2f}"
        day = f"2024-{rng.integers(1, 13):02}-{rng.integers(1, 29):02}"
        words = (100_007 + 7 * row, f"shop-{shop}", region, cell, size, str(promo).lower(), note, day, rating)
        lines.append(",".join(map(str, words)))
    return lines


def headlines() -> list[str]:
    """A table of nothing but text."""
    rng = np.random.default_rng(0)
    words = {"money": ["shares", "bank", "profit", "fall"], "sport": ["goal", "team", "final", "late"]}
    lines = ["paper,headline,topic"]
    for row in range(240):
        topic = ("money", "sport")[rng.integers(2)]
        said = " ".join([*rng.permutation(words[topic])[:3].tolist(), f"in {row}"])
        lines.append(f"paper{row % 12},{said},{topic}")
    return lines


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of these files as the working directory, and examples that end soon."""
    folder = tmp_path / "work"
    shutil.copytree(prepared, folder)
    shutil.copy(ROOT / "examples" / "own_method.py", folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)  # as `coterie` itself does
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(coterie, "run", shortened(run_a_federation))
    return folder


def shortened(function: Callable[..., Any]) -> Callable[..., Any]:
    """`coterie.run` with at most ROUNDS rounds."""

    @functools.wraps(function)
    def short(*args: Any, rounds: int = ROUNDS, **more: Any) -> Any:
        return function(*args, rounds=min(rounds, ROUNDS), **more)

    return short


def run(words: list[str]) -> None:
    """A command of ours, in this process."""
    from coterie.tools.cli.main import app

    code = app(words, prog_name="coterie", standalone_mode=False)
    assert not code, f"coterie {' '.join(words)} ended with {code}"


def small(words: list[str]) -> list[str]:
    """The same command, but with few rounds and a small search."""
    if words[0] in ("run", "compare", "sweep") and "--resume" not in words:
        words = [word for word in words if not word.startswith("rounds=")] + [f"rounds={ROUNDS}"]
    if words[0] == "compare":
        words = ["seeds=1" if word.startswith("seeds=") else word for word in words]
    for option, value in {"--trials": "2", "--links": "4"}.items():
        if option in words:
            words[words.index(option) + 1] = value
    if words[:2] == ["bench", "network"] and "--links" not in words:
        words += ["--links", "4"]
    return words


def execute(block: Block, folder: Path) -> None:
    """The commands of a shell block, one after another."""
    for words in commands(block):
        if words[0] in CHECKED:
            named(words, block)
            continue
        assert words[0] == "coterie", (
            f"{block.where}: what is `{words[0]}`? Run it, or say why not: <!-- not run: ... -->"
        )
        if "--out" in words:
            shutil.rmtree(folder / words[words.index("--out") + 1], ignore_errors=True)
        try:
            run(small(words[1:]))
        except BaseException as error:
            skip_without_extra(error)
            raise AssertionError(f"{block.where}: {' '.join(words)}: {error!r}") from error


def skip_without_extra(error: BaseException) -> None:
    """Skip where the error is that an extra is not installed."""
    if isinstance(error, CoterieError) and "coterie[" in str(error):
        pytest.skip(str(error))
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in OPTIONAL:
        pytest.skip(f"{error.name} is not installed")


def named(words: list[str], block: Block) -> None:
    """What a command that CI runs itself, or an installation, names."""
    if words[0] == "make":
        assert set(words[1:]) <= TARGETS, f"{block.where}: {words}"
    elif words[0] == "pip":
        extras = re.findall(r"coterie\[([^\]]+)\]", " ".join(words))
        assert all(name in EXTRAS for found in extras for name in found.split(",")), f"{block.where}: {words}"
    else:
        script = next((word for word in words if word.endswith((".py", "run"))), None)
        assert script is None or (ROOT / script).is_file(), f"{block.where}: {words}"


def session(page: str, mark: str) -> None:
    """The Python blocks of a page, in order and in one namespace, up to those of this mark."""
    module = sys.modules["example"] = ModuleType("example")  # a state is looked up in its method's module
    for block in PAGES[page]:
        if block.language not in ("python", "setup") or block.mark not in ("", mark):
            continue
        code = compile("\n" * block.line + block.text, block.page, "exec", dont_inherit=True)
        try:
            exec(code, module.__dict__)
        except (CoterieError, ImportError) as error:
            skip_without_extra(error)
            raise


@pytest.mark.parametrize(
    "page", few(with_("python", ""), "README.md", "docs/tutorial.md", "docs/contributing/method.md")
)
def test_python_of_a_page_runs(page: str, place: Path) -> None:
    session(page, "")


@pytest.mark.slow
@pytest.mark.parametrize("page", with_("python", "slow"))
def test_slow_python_of_a_page_runs(page: str, place: Path) -> None:
    session(page, "slow")


@pytest.mark.filterwarnings("ignore:.*values are missing:coterie.core.errors.CoterieWarning")
@pytest.mark.parametrize("page", few(with_("sh", ""), "README.md"))
def test_commands_of_a_page_run(page: str, place: Path) -> None:
    for block in PAGES[page]:
        if block.language == "sh" and not block.mark:
            execute(block, place)


@pytest.mark.slow
@pytest.mark.parametrize("page", [*with_("sh", "slow"), *with_("sh", "", generated=True)])
def test_slow_commands_of_a_page_run(page: str, place: Path) -> None:
    for block in PAGES[page]:
        if block.language == "sh" and (block.mark == "slow" or page.startswith("docs/methods/")):
            execute(block, place)


def test_every_block_has_a_language_that_is_known() -> None:
    known = ("python", "sh", "setup", *SHOWN)
    odd = [f"{block.where} ({block.language or 'none'})" for page in PAGES.values() for block in page]
    assert [one for one in odd if not one.endswith(tuple(f"({name})" for name in known))] == []


def test_few_blocks_are_left_out() -> None:
    """Each says why, and some which test runs them. Raise the bound only for one that no single machine can run."""
    left_out = [block for page in PAGES.values() for block in page if block.mark == "not run"]
    assert all(len(block.reason) > 10 for block in left_out)
    tests = {block.where: re.findall(r"tests/[\w/]+\.py", block.reason) for block in left_out}
    assert all((ROOT / file).is_file() for files in tests.values() for file in files)
    assert len(alone := [where for where, files in tests.items() if not files]) <= 26, alone


def test_a_block_that_fails_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Block("x.md", 3, "python", "1 / 0\n")
    monkeypatch.setitem(PAGES, "x.md", [bad])
    with pytest.raises(ZeroDivisionError):
        session("x.md", "")
    with pytest.raises(AssertionError, match="unknown"):
        execute(Block("x.md", 3, "sh", "coterie run method.name=wecfll\n"), tmp_path)
    with pytest.raises(AssertionError, match="say why not"):
        execute(Block("x.md", 3, "sh", "docker run something\n"), tmp_path)
    with pytest.raises(AssertionError, match="no-such-target"):
        execute(Block("x.md", 3, "sh", "make no-such-target\n"), tmp_path)
