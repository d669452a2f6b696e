"""`coterie init` on files as people have them: the right columns, a document that runs, and nothing overwritten."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.tools.cli.main import app
from coterie.tools.setup.document import document
from coterie.tools.setup.facts import Column, look
from coterie.tools.setup.guesses import guess, task_of, time_of, useless, words_in
from coterie.training.config import read
from coterie.training.execute import execute

ROWS = 120
Cells = dict[str, list[Any]]


def numbers(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(ROWS, 3)).round(3)


def hospitals() -> Cells:
    """Names of classes, names of clients, a number of its own in every row, and one name more of each client."""
    x, who = numbers(), [i % 6 for i in range(ROWS)]
    return {
        "visit_id": [1000 + i for i in range(ROWS)],
        "Hospital Name": [f"St. {'ABCDEF'[w]}" for w in who],
        "site_code": [900 + w for w in who],
        "age": x[:, 0].tolist(),
        "sex": ["f" if v > 0 else "m" for v in x[:, 1]],
        "outcome": ["yes" if v > 0 else "no" for v in x[:, 0]],
    }


def sales() -> Cells:
    """Amounts, dates, clients by number, a hole among the targets and some among the inputs."""
    x = numbers(1)
    cells: Cells = {
        "date": [(date(2024, 1, 1) + timedelta(days=i)).isoformat() for i in range(ROWS)],
        "store": [i % 5 + 1 for i in range(ROWS)],
        "price": [100 + 10 * v for v in x[:, 0]],
        "visitors": ["" if i % 17 == 3 else i % 40 for i in range(ROWS)],
        "temperature": x[:, 1].tolist(),
    }
    cells["price"][7] = ""
    return cells


def devices() -> Cells:
    """Whole numbers as classes; the target is the last column and has a name that says nothing."""
    x = numbers(2)
    return {
        "deviceId": [f"d{i % 4}" for i in range(ROWS)],
        "time": list(range(ROWS)),
        "a": x[:, 0].tolist(),
        "b": x[:, 1].tolist(),
        "state": (x[:, 0] > 0).astype(int).tolist(),
    }


def marked() -> Cells:
    """The rows for testing are marked: a date is no reason to choose others."""
    cells = hospitals() | {"date": [(date(2024, 1, 1) + timedelta(days=i)).isoformat() for i in range(ROWS)]}
    return cells | {"split": ["test" if i % 30 < 6 else "train" for i in range(ROWS)]}


SHAPES: dict[str, tuple[Callable[[], Cells], dict[str, Any]]] = {
    "hospitals": (
        hospitals,
        {"client": "Hospital Name", "y": "outcome", "task": "classification", "leave_out": ["visit_id", "site_code"]},
    ),
    "sales": (sales, {"client": "store", "y": "price", "task": "regression", "time": "date", "missing": "drop"}),
    "devices": (devices, {"client": "deviceId", "y": "state", "task": "classification", "time": "time"}),
    "marked": (
        marked,
        {"client": "Hospital Name", "y": "outcome", "task": "classification", "leave_out": ["visit_id", "site_code"]},
    ),
}


def write(cells: Cells, path: Path, mark: str = ",") -> None:
    if path.suffix == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        holes = {name: [None if v == "" else v for v in values] for name, values in cells.items()}
        pytest.importorskip("pyarrow.parquet").write_table(arrow.table(holes), path)
        return
    lines = [mark.join(cells), *(mark.join(map(str, row)) for row in zip(*cells.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def init(*words: str, **more: Any) -> Any:
    return CliRunner().invoke(app, ["init", *words], catch_exceptions=True, **more)


@pytest.mark.filterwarnings("ignore:data:coterie.core.errors.CoterieWarning")  # of holes, where there are
@pytest.mark.parametrize("mark", [",", ";", "parquet"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_document_has_the_right_columns_and_runs(
    shape: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, wanted = SHAPES[shape]
    name = "parquet" if mark == "parquet" else "csv"
    file = f"{shape}.{name}"
    write(make(), Path(file), mark)
    said = init(file)
    assert said.exit_code == 0, said
    found = yaml.safe_load(Path(f"{shape}.yaml").read_text())
    usual = {"name": name, "path": file, "missing": "mean"}
    assert found["data"] == usual | wanted
    assert (found["method"], found["local"]["lr"]) == ("halves", "auto")
    assert f"coterie inspect {shape}.yaml" in said.output
    assert f"coterie run {shape}.yaml" in said.output
    config = read(Path(f"{shape}.yaml"), ["rounds=2", "local.epochs=1"])
    result = execute(config, tmp_path / "run")
    assert len(result.federation) == len(set(filter(None, map(str, make()[wanted["client"]]))))


def test_an_amount_is_the_target_by_its_name_or_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = numbers(3)
    cells: Cells = {"shop": [f"s{i % 4}" for i in range(ROWS)], "avg_price": x[:, 0].tolist(), "km": x[:, 1].tolist()}
    for last in ("revenue", "takings"):
        write(cells | {last: x[:, 2].tolist()}, Path(f"{last}.csv"))
        assert init(f"{last}.csv").exit_code == 0
        assert yaml.safe_load(Path(f"{last}.yaml").read_text())["data"]["y"] == last


def test_every_line_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(hospitals(), Path("v.csv"))
    assert init("v.csv", "--out", "o.yaml").exit_code == 0
    for line in Path("o.yaml").read_text().splitlines():
        assert not line or "# " in line, line


def test_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = numbers()
    np.savez("mine.npz", inputs=x, label=(x[:, 0] > 0).astype(int), user=np.array([f"u{i % 4}" for i in range(ROWS)]))
    assert init("mine.npz").exit_code == 0
    found = yaml.safe_load(Path("mine.yaml").read_text())["data"]
    wanted = {
        "name": "npz",
        "path": "mine.npz",
        "x": "inputs",
        "client": "user",
        "y": "label",
        "task": "classification",
    }
    assert found == wanted
    assert len(execute(read(Path("mine.yaml"), ["rounds=1"]), tmp_path / "run").federation) == 4
    np.savez("photos.npz", x=np.zeros((40, 1, 8, 8)), y=np.arange(40) % 2, client=np.arange(40) % 4)
    assert guess(look("photos.npz")).inputs == ("x",)
    assert "\nmodel: cnn " in document(look("photos.npz"), guess(look("photos.npz")), "p.yaml")


def test_what_a_user_names_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(hospitals(), Path("v.csv"))
    assert init("v.csv", "--client", "sex", "--target", "age").exit_code == 0
    found = yaml.safe_load(Path("v.yaml").read_text())["data"]
    assert (found["client"], found["y"], found["task"]) == ("sex", "age", "regression")


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(hospitals(), Path("v.csv"))
    Path("v.yaml").write_text("mine: 1\n")
    failed = init("v.csv").exception
    assert isinstance(failed, CoterieError)
    assert (failed.code, "--out" in str(failed)) == ("file-exists", True)
    assert Path("v.yaml").read_text() == "mine: 1\n"


def test_nothing_is_asked_without_a_terminal_and_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert getattr(init().exception, "code", "") == "option-missing"
    x = numbers()
    write({"a": x[:, 0].tolist(), "b": x[:, 1].tolist()}, Path("v.csv"))
    failed = init("v.csv").exception
    assert "--client COLUMN, one of a, b" in str(failed)
    assert not Path("v.yaml").exists()
    with raises("data-column-unknown", match="--target: .* has no 'z'; it has a, b"):
        guess(look("v.csv"), "a", "z")
    with raises("option-conflict"):
        guess(look("v.csv"), "a", "a")
    Path("v.json").write_text("{}")
    with raises("data-file-format", match=r"\.csv, \.parquet or \.npz"):
        look("v.json")


def test_what_cannot_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = hospitals()
    cells["Hospital Name"][3] = ""
    write(cells, Path("v.csv"))
    assert isinstance(init("v.csv", "--client", "Hospital Name").exception, CoterieError)
    assert not Path("v.yaml").exists()


def test_a_person_is_asked_and_may_say_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(hospitals(), Path("v.csv"))
    monkeypatch.setattr("coterie.tools.cli.init.sys", type("Terminal", (), {"stdin": Terminal()}))
    said = init(input="v.csv\n\nsex\n")  # the file; the client as guessed; another target
    assert said.exit_code == 0, said.exception
    assert "whose row it is [Hospital Name]" in said.output
    assert yaml.safe_load(Path("v.yaml").read_text())["data"]["y"] == "sex"
    Path("v.yaml").unlink()
    said = init("v.csv", "--yes")
    assert "whose row it is [" not in said.output


class Terminal:
    def isatty(self) -> bool:
        return True


# ------------------------------------------------------------------------------------------------ single guesses


def test_words_of_a_name() -> None:
    assert words_in("patientId") == words_in("patient_id") == words_in("Patient ID") == ["patient", "id"]
    assert words_in("HTTPServer2") == ["http", "server", "2"]
    assert words_in("größe")[0] in ("gr", "größe")
    assert words_in("顧客") == ["顧客"]


@pytest.mark.parametrize(
    ("cells", "task"),
    [
        (["a", "b", "a"], "classification"),
        (["true", "false", "true"], "classification"),
        (["0", "1", "2"], "classification"),
        (["0.5", "1", "2"], "regression"),
        (["-1", "1", "1"], "regression"),
        ([str(i) for i in range(21)], "regression"),
        ([str(i) for i in range(20)], "classification"),
        (["1", "", "0"], "classification"),
    ],
)
def test_classes_or_numbers(cells: list[str], task: str) -> None:
    assert task_of(Column.of("y", cells))[0] == task


def test_times_and_identifiers() -> None:
    days = [f"2024-01-{i + 1:02}" for i in range(24)]
    assert time_of([Column.of("day of birth", days)]) is not None
    assert time_of([Column.of("day", [f"{i}/1/2024" for i in range(24)])]) is None  # whose order is anybody's guess
    assert time_of([Column.of("day_number", [str(i) for i in range(24)])]) is None
    client = Column.of("client", [str(i % 3) for i in range(24)])
    assert useless(Column.of("n", [str(i) for i in range(24)]), client) is not None
    assert useless(Column.of("v", [str(i + 0.5) for i in range(24)]), client) is None
    assert useless(Column.of("code", [f"c{i % 3}" for i in range(24)]), client) is not None
    assert useless(Column.of("region", [f"r{i % 3 == 0}" for i in range(24)]), client) is None  # of several clients
    assert useless(Column.of("same", ["1"] * 24), client) is not None


def test_the_command_is_in_the_table() -> None:
    assert "init" in CliRunner().invoke(app, ["--help"]).output
    assert sys.modules["coterie.tools.cli.init"].init.__doc__
