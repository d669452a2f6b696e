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
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.data import CSV
from coterie.tools.cli.main import app
from coterie.tools.first_config import SeenColumn, document, guess, look, task_of, time_of, useless, words_in
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
    "sales": (sales, {"client": "store", "y": "price", "task": "regression", "time": "date"}),
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
    cells["age"][3] = "old"
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


def test_a_client_column_that_is_not_taken_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = hospitals()
    cells["Hospital Name"][3] = cells["Hospital Name"][8] = cells["outcome"][9] = ""
    del cells["site_code"]
    write(cells, Path("v.csv"))
    why = "column 'Hospital Name' says whose row it is, but is empty in 2 rows (the first is line 5); fill them in"
    assert why in str(init("v.csv").exception)
    said = init("v.csv", "--client", "Hospital Name")
    assert "  rows      Hospital Name: empty in 2 of 120 rows, which are left out\n" in said.output
    assert "  rows      outcome: empty in 1 of 120 rows, which are left out\n" in said.output
    assert yaml.safe_load(Path("v.yaml").read_text())["data"]["missing"] == "mean"
    with pytest.warns(CoterieWarning) as heard:
        execute(read(Path("v.yaml"), ["rounds=1", "local.epochs=1", "local.lr=0.1"]), tmp_path / "run")
    assert any("'Hospital Name', the owner of each row, is empty in 2 of 120 rows" in str(w.message) for w in heard)
    cells["Hospital Name"] = ["St. A"] * ROWS
    write(cells, Path("v.csv"))
    assert "has one value only, 'St. A': one client cannot be compared" in str(init("v.csv", "--out", "o").exception)
    cells["Hospital Name"] = [f"St. {i}" for i in range(ROWS)]
    write(cells, Path("v.csv"))
    assert "has 120 values, 1.0 rows each on average; if" in str(init("v.csv", "--out", "o").exception)


def test_a_label_that_is_always_the_same_is_not_replaced_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(hospitals() | {"outcome": ["home"] * ROWS}, Path("v.csv"))
    with pytest.warns(
        CoterieWarning, match=r"'outcome' has the same value \('home'\) in every row: 'sex' is predicted"
    ):
        assert init("v.csv").exit_code == 0
    with pytest.warns(CoterieWarning, match="in every row: there is nothing to learn"):
        init("v.csv", "--target", "outcome", "--out", "o.yaml")


def test_what_a_run_leaves_out_is_said_and_is_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    days = [(date(2024, 1, 1) + timedelta(days=i)).isoformat() for i in range(ROWS)]
    bmi = [f'"{20 + i % 60},{i % 10}"' for i in range(ROWS)]
    for odd, what in (("", "empty"), ("31.12.2025", "'31.12.2025'")):
        cells = hospitals() | {"date": [*days[:40], odd, *days[41:]], "bmi": bmi, "admitted": days[:60] * 2}
        write(cells, Path("v.csv"))
        Path("v.yaml").unlink(missing_ok=True)
        said = init("v.csv")
        assert f"  left out  date: nearly a time: line 42 is {what}; with an ISO date" in said.output
        assert "  left out  admitted: dates; data.time=admitted tests on" in said.output
        assert "  left out  bmi: looks like numbers with a decimal comma, such as '20,0'; write" in said.output
        assert "  inputs    age, sex\n" in said.output


def test_text_that_repeats_is_text_where_there_is_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"waited {i % 55} hours for the doctor" for i in range(ROWS)]
    cells: Cells = {"clinic": [f"c{i % 4}" for i in range(ROWS)], "text": texts, "label": ["a", "b"] * (ROWS // 2)}
    write(cells, Path("v.csv"))
    said = init("v.csv")
    assert "  text      text: text of several words, which are hashed\n" in said.output
    assert yaml.safe_load(Path("v.yaml").read_text())["data"]["text"] == ["text"]
    assert CSV("v.csv", "label", "clinic")().features == ("text",)
    write(cells | {"age": numbers()[:, 0].tolist()}, Path("w.csv"))
    beside = CSV("w.csv", "label", "clinic")()
    assert beside.remarks[0] == "left out: text (text with 55 different values; data.text=text uses its words)"


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
    assert task_of(SeenColumn.of("y", cells))[0] == task


def test_times_and_identifiers() -> None:
    days = [f"2024-01-{i + 1:02}" for i in range(24)]
    client = SeenColumn.of("client", [str(i % 3) for i in range(24)])
    assert time_of([SeenColumn.of("day of birth", days)], client) is not None
    assert (
        time_of([SeenColumn.of("day", [f"{i}/1/2024" for i in range(24)])], client) is None
    )  # whose order is anybody's guess
    assert time_of([SeenColumn.of("day_number", [str(i) for i in range(24)])], client) is None
    assert useless(SeenColumn.of("n", [str(i) for i in range(24)]), client) is not None
    assert useless(SeenColumn.of("v", [str(i + 0.5) for i in range(24)]), client) is None
    assert useless(SeenColumn.of("code", [f"c{i % 3}" for i in range(24)]), client) is not None
    assert useless(SeenColumn.of("region", [f"r{i % 3 == 0}" for i in range(24)]), client) is None  # of several clients
    assert useless(SeenColumn.of("same", ["1"] * 24), client) is not None
    # Of numbers, a name is not enough: a client's rows are in the order of a time, and not in that of a reaction time.
    rising = [str(10 * (i // 3) + i % 3) for i in range(24)]
    assert time_of([SeenColumn.of("test_time", rising)], client) is not None
    assert time_of([SeenColumn.of("reaction_time", [str(i * 7 % 24) for i in range(24)])], client) is None
    assert (
        time_of([SeenColumn.of("test_time", ["3"] * 12 + ["4"] * 12)], client) is None
    )  # most rows have no time of their own
    number = [str(i // 3) for i in range(24)]  # each client counts its own rows
    assert useless(SeenColumn.of("UNIQUE_ID", number), client) is not None
    assert useless(SeenColumn.of("visits", number), client) is None


def doubtful(cells: Cells, path: Path, **named: Any) -> dict[str, str]:
    write(cells, path)
    return {one.column: one.why for one in guess(look(str(path)), **named).doubts}


def test_what_gives_the_target_away_is_told(tmp_path: Path) -> None:
    x, who = numbers(), [i % 6 for i in range(ROWS)]
    cells: Cells = {"user": who, "a": x[:, 0].tolist(), "b": x[:, 1].tolist()}
    cells |= {"celsius": (x[:, 2] * 5).tolist(), "fahrenheit": (x[:, 2] * 9 + 32).round(1).tolist()}
    found = doubtful(cells, tmp_path / "t.csv")
    assert "tells 'fahrenheit' all by itself" in found["celsius"]
    assert "only because it is the last column" in found["fahrenheit"]
    assert set(found) == {"celsius", "fahrenheit"}
    kinds: Cells = {"user": who, "a": x[:, 0].tolist(), "grade": ["AB"[int(v > 0)] for v in x[:, 1]]}
    kinds["class"] = ["good" if v > 0 else "bad" for v in x[:, 1]]
    assert set(doubtful(kinds, tmp_path / "k.csv")) == {"grade"}


def test_series_and_what_is_the_same_for_a_client_are_told(tmp_path: Path) -> None:
    rng, who = np.random.default_rng(0), np.repeat(np.arange(4), 30)
    walk = {name: rng.normal(size=ROWS).cumsum().round(3).tolist() for name in "abc"}
    y = (np.arange(ROWS) % 2).tolist()
    cells: Cells = {"user": who.tolist(), **walk, "old": (who // 2 + 60 + who).tolist(), "class": y}
    found = doubtful(cells, tmp_path / "t.csv")
    assert "like those before them" in found["user"]
    assert "the same in all rows of a client" not in found.get("old", "")  # as many values as clients: left out
    cells["old"] = (who // 2 + 60).tolist()
    assert "the same in all rows of a client" in doubtful(cells, tmp_path / "o.csv")["old"]
    timed = cells | {"time": list(range(ROWS))}
    assert "user" not in doubtful(timed, tmp_path / "d.csv")  # tested on the latest rows anyway


def test_columns_are_left_out_as_one_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(hospitals(), Path("v.csv"))
    said = init("v.csv", "--leave-out", "age", "--leave-out", "sex", "--out", "o.yaml")
    assert said.exit_code == 2 or said.exit_code == 1  # nothing is left to learn from
    said = init("v.csv", "--leave-out", "sex", "--out", "o.yaml")
    assert said.exit_code == 0, said
    assert yaml.safe_load(Path("o.yaml").read_text())["data"]["leave_out"] == ["sex", "visit_id", "site_code"]
    with raises("data-column-unknown", match="no 'sexx'"):
        guess(look("v.csv"), leave_out=("sexx",))
    with raises("option-conflict", match="--leave-out: 'outcome'"):
        guess(look("v.csv"), target="outcome", leave_out=("outcome",))


def test_a_data_file_is_a_csv_file_and_one_without_names_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(hospitals(), Path("v.data"))
    assert init("v.data").exit_code == 0
    assert yaml.safe_load(Path("v.yaml").read_text())["data"]["name"] == "csv"
    Path("bare.data").write_text("63.0,1.0,1.0,145.0,0\n67.0,1.0,4.0,160.0,2\n")
    with raises("data-column-invalid", match=r"first line has numbers \(63.0, 1.0, 1.0, ...\), not names"):
        look("bare.data")


def test_the_command_is_in_the_table() -> None:
    assert "init" in CliRunner().invoke(app, ["--help"]).output
    assert sys.modules["coterie.tools.cli.init"].init.__doc__
