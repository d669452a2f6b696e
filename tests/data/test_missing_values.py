"""What is missing in a table: labels, owners and NA in text; and numbers that only look like text."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.local import Local
from coterie.data import CSV, from_frame
from coterie.data.columns import TableScale

LOCAL = Local(epochs=1, lr=0.1)
pytestmark = pytest.mark.filterwarnings("ignore:data:coterie.core.errors.CoterieWarning")


def table(path: Path, header: str, rows: list[str]) -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def told(data: CSV) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = data()
    return made, [str(w.message).partition(": ")[2].partition(": ")[2] for w in said]


# ------------------------------------------------------------------------------------------------ labels and owners


def test_rows_without_a_label_are_left_out_and_holes_stay(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "a,y,client", ["1,x,p", ",y,p", "3,,p", "4,x,", "5,y,q", "6,NA,q"])
    data, said = told(CSV(path, "y"))
    assert np.isnan(data.x[:, 0].numpy()).tolist() == [False, True, False]
    assert (data.x[[0, 2], 0].tolist(), data.y.tolist(), data.class_names) == ([1.0, 5.0], [0, 1, 1], ("x", "y"))
    assert (data.client.tolist(), data.client_names) == ([0, 0, 1], ("p", "q"))
    assert said[1:] == [
        "column 'y', to be predicted, is empty in 2 of 6 rows; these are left out.",
        "column 'client', the owner of each row, is empty in 1 of 6 rows; it is left out.",
    ]
    assert len(told(CSV(path, "y", missing={"a": 0.0}))[0].y) == 3
    path = table(tmp_path / "t.csv", "a,y", ["1,x", "2,", "3,y"])
    with pytest.raises(CoterieError, match=r"column 'y', line 3: the value is missing; .*data\.missing=mean leaves"):
        CSV(path, "y", missing="refuse")()


def test_amounts_that_are_missing(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "a,y", ["1,0.5", "2,nan", "3,NA", "4,2.5"])
    assert told(CSV(path, "y"))[0].y.flatten().tolist() == [0.5, 2.5]
    frame = {"a": [1.0, 2.0, 3.0], "y": [0.5, float("nan"), 2.5]}
    assert from_frame(frame, "y").y.flatten().tolist() == [0.5, 2.5]
    with pytest.raises(CoterieError, match="every row has a missing value"):
        CSV(table(tmp_path / "t.csv", "a,y", ["1,", "2,"]), "y")()


def test_a_full_table_is_read_as_ever(tmp_path: Path) -> None:
    full = [f"{i},{i % 2},c{i % 2}" for i in range(8)]
    one = CSV(table(tmp_path / "a.csv", "a,y,client", full), "y")()
    two = CSV(table(tmp_path / "b.csv", "a,y,client", [*full[:3], "9,,c0", *full[3:]]), "y")()
    assert (one.x.tolist(), one.y.tolist()) == (two.x.tolist(), two.y.tolist())
    assert two.client is not None
    assert one.client is not None
    assert one.client.tolist() == two.client.tolist()


# ------------------------------------------------------------------------------------------------ NA in text


ROWS = [
    f"{v},{i % 2},c{i % 2}" for i, v in enumerate(["north", "NA", "south", "?", "", "n/a", "north", "-", "-", "none"])
]


def test_na_in_text_is_missing(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "v,y,client", ROWS * 3)
    data, said = told(CSV(path, "y", categories=("v",)))
    assert data.plan.columns[0].values == ("-", "none", "north", "south")
    assert said[0].startswith("values are missing in 12 of 30 rows: v (12).")
    as_value, _ = told(CSV(path, "y", categories=("v",), na="value"))
    assert as_value.plan.columns[0].values == ("-", "?", "NA", "none", "north", "south")
    given, _ = told(CSV(path, "y", categories={"v": ("NA", "north", "south")}))
    assert "NA" in given.plan.columns[0].values  # named by the user
    assert "?" not in given.plan.columns[0].values


def test_a_run_predicts_na_as_it_was_trained(tmp_path: Path) -> None:
    rows = [f"{v},{i},{i % 2},c{i % 2}" for i, v in enumerate(["north", "NA", "south", ""] * 10)]
    path = table(tmp_path / "t.csv", "v,a,y,client", rows)
    for na, alike in (("missing", True), ("value", False)):
        federation = coterie.federate(CSV(path, "y", na=na, leave_out=("a",)))  # type: ignore[arg-type]
        coterie.run(coterie.FedAvg(local=LOCAL), federation, "linear", rounds=1, out=tmp_path / na)
        result = coterie.load(tmp_path / na)
        blank, available = (result.scale({"v": [cell]}).tolist() for cell in ("", "NA"))  # type: ignore[misc,arg-type]
        assert (blank == available) is alike
        scale = federation.scales[0]
        assert isinstance(scale, TableScale)
        assert available == scale(scale.stored({"v": ["NA"]}, "new rows")).tolist()


# ------------------------------------------------------------------------------------------------ decimal commas


def test_a_decimal_comma_is_said_and_no_categories_are_proposed(tmp_path: Path) -> None:
    rows = [f'"{20 + i % 267},{i % 10}",{i},{i % 2}' for i in range(300)]
    path = table(tmp_path / "t.csv", "bmi,a,y", rows)
    data, said = told(CSV(path, "y"))
    assert data.left_out == ("bmi",)
    assert data.remarks[0].startswith("left out: bmi (looks like numbers with a decimal comma, such as '20,0'; write")
    assert "data.categories" not in data.remarks[0]
    assert any("column 'bmi' is left out: it looks like numbers with a decimal comma ('20,0')" in text for text in said)


def test_one_decimal_comma_among_numbers_is_an_error_that_says_what_to_write(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "bmi;y", ["22.3;0", "1.022,3;1"])
    with pytest.raises(CoterieError, match=r"line 3: '1.022,3' is no number; write it with a point.* \(22\.3\)"):
        CSV(path, "y")()


def test_values_that_have_commas_beside_words_are_categories(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "size;y", ["1,5;0", "large;1"] * 4)
    assert CSV(path, "y")().left_out == ()


def test_few_values_stay_categories_but_not_in_silence(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", "litres;a;y", ["1,5;1;0", "2,5;2;1"] * 2)
    with pytest.warns(CoterieWarning, match="column 'litres' has categories: .* decimal comma"):
        assert CSV(path, "y")().features == ("litres", "a")
