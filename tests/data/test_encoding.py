"""Missing values and categories of tables: values computed by hand, nothing measured on test rows, any order."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import coterie
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.data import CSV, Parquet, from_frame
from coterie.data.columns import InputColumn, StoredColumn, TablePlan, TableScale
from coterie.data.federate import with_validation
from coterie.data.federation import Federation

HOLES = "ignore:.*values are missing:coterie.core.errors.CoterieWarning"
NAN = float("nan")


@pytest.fixture
def text(tmp_path: Path) -> Callable[..., str]:
    def write(content: str, name: str = "shops.csv") -> str:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return str(tmp_path / name)

    return write


def inputs(federation: Federation, split: Any = "train") -> dict[str, list[float]]:
    """Of the first client, by name."""
    x, _ = federation.samples(0, split)
    assert federation.features is not None
    return {name: x[:, i].tolist() for i, name in enumerate(federation.features)}


# ----------------------------------------------------------------------------------------------------- by hand


def test_holes_and_categories_by_hand(text: Callable[..., str]) -> None:
    """Prices 2, 4 and a hole to train on: mean 3, deviation 1. The test rows' 100 and west have no part in it."""
    path = text(
        "price,region,y,client,split\n2,north,0,a,train\n,south,1,a,train\n4,north,0,a,train\n"
        "100,west,1,a,test\n,,0,a,test\n"
    )
    with pytest.warns(
        CoterieWarning, match=r"missing in 2 of 5 rows: price \(2\), region \(1\)\. Missing numbers become"
    ):
        federation = coterie.federate(CSV(path, "y", categories=("region",)))
    assert inputs(federation) == {
        "price": [-1.0, 0.0, 1.0],
        "price missing": [0.0, 1.0, 0.0],
        "region=north": [1.0, 0.0, 1.0],
        "region=south": [0.0, 1.0, 0.0],
    }
    assert inputs(federation, "test") == {
        "price": [97.0, 0.0],
        "price missing": [0.0, 1.0],
        "region=north": [0.0, 0.0],
        "region=south": [0.0, 0.0],
    }
    assert "values without an input, so that all are 0: region (west)" in federation.remarks
    assert federation.check() is federation


def test_without_standardising_the_mean_stands_in(text: Callable[..., str]) -> None:
    path = text("price,y,client,split\n2,0,a,train\n,1,a,train\n5,0,a,train\n11,1,a,test\n")
    with pytest.warns(CoterieWarning, match="missing"):
        federation = coterie.federate(CSV(path, "y", standardise=False))
    assert inputs(federation) == {"price": [2.0, 3.5, 5.0], "price missing": [0.0, 1.0, 0.0]}


@pytest.mark.filterwarnings(HOLES)
def test_a_hole_in_test_rows_alone_adds_no_input(text: Callable[..., str]) -> None:
    path = text("price,y,client,split\n2,0,a,train\n4,1,a,train\n,1,a,test\n")
    federation = coterie.federate(CSV(path, "y"))
    assert (inputs(federation), inputs(federation, "test")) == ({"price": [-1.0, 1.0]}, {"price": [0.0]})


@pytest.mark.filterwarnings(HOLES)
def test_rows_to_test_on_have_no_part_in_what_is_measured(text: Callable[..., str]) -> None:
    """Whatever the test rows are, the encoding is the same to the last bit."""
    train = "price,region,y,client,split\n2,n,0,a,train\n,s,1,a,train\n4,n,0,a,train\n5,s,0,a,train\n"
    found = []
    for rows in ("1,n,0,a,test\n1,s,0,a,test\n", "1e6,n,0,a,test\n,s,1,a,test\n,x,1,a,test\n"):
        federation = coterie.federate(CSV(text(train + rows), "y"))
        found.append((federation.scales[0], federation.features))
    (first, names), (second, others) = found
    assert isinstance(first, TableScale)
    assert isinstance(second, TableScale)
    assert (first.bytes(), names) == (second.bytes(), others)


@pytest.mark.filterwarnings(HOLES)
def test_partitions_measure_on_the_rows_they_train_on(text: Callable[..., str]) -> None:
    rows = [f"{i if i % 3 else ''},{'abc'[i % 3]},{i % 2}" for i in range(60)]
    federation = coterie.federate(
        CSV(text("\n".join(["v,kind,y", *rows])), "y", standardise=False), coterie.data.IID(clients=4)
    )
    scale = federation.scales[0]
    assert isinstance(scale, TableScale)
    trained = [int(n) for n in federation.train.numbers]
    seen = [row for row in trained if row % 3]
    assert scale.columns[0].fill == pytest.approx(sum(seen) / len(seen), rel=1e-12)
    assert len(trained) < 60


def test_dropped_rows(text: Callable[..., str]) -> None:
    path = text("price,region,y,client\n2,n,0,a\n,s,1,a\n4,n,1,b\n5,s,,b\n6,s,0,b\n7,,0,b\n8,s,1,a\n9,n,1,a\n")
    with pytest.warns(CoterieWarning) as said:
        data = CSV(path, "y", missing="drop", categories="none")()
    assert (data.x[:, 0].tolist(), data.y.tolist(), data.client.tolist()) == (  # type: ignore[union-attr]
        *([2.0, 4.0, 6.0, 7.0, 8.0, 9.0], [0, 1, 0, 0, 1, 1], [0, 1, 1, 1, 0, 0]),
    )
    assert [str(w.message).partition(": ")[2].partition(": ")[2] for w in said] == [
        "values are missing in 1 of 8 rows: price (1). These rows are left out (data.missing=drop).",
        "column 'y', to be predicted, is empty in 1 of 8 rows; it is left out.",
    ]
    with pytest.warns(CoterieWarning):
        both = CSV(path, "y", missing="drop", categories=("region",))()
    assert both.x[:, 0].tolist() == [2.0, 4.0, 6.0, 8.0, 9.0]
    with pytest.raises(CoterieError, match="line 3: the value is missing"):
        CSV(path, "y", missing="refuse")()


def test_given_numbers_and_values(text: Callable[..., str]) -> None:
    """The inputs are the same whatever the rows hold: what clients of a network need."""
    coded = CSV(text("zip,v,y\n1.0,1,0\n2,1,0\n,1,1\n"), "y", categories={"zip": (2, 1)}, leave_out=("v",))
    with pytest.warns(CoterieWarning, match=r"zip \(1\)"):
        assert coded().x.nan_to_num(-1).tolist() == [[1.0], [0.0], [-1.0]]
    say: dict[str, Any] = {"missing": {"price": 9.0}, "categories": {"region": ("w", "n", "s")}, "standardise": False}
    with pytest.warns(CoterieWarning, match="become the numbers that were given"):
        some = coterie.federate(CSV(text("price,region,y,client\n2,n,0,a\n,x,1,a\n"), "y", **say))
    none = coterie.federate(CSV(text("price,region,y,client\n2,s,0,a\n3,s,1,a\n"), "y", **say))
    assert some.features == none.features == ("price", "price missing", "region=w", "region=n", "region=s")
    rows = sorted(torch.cat([some.samples(0, "train")[0], some.samples(0, "test")[0]]).tolist())
    assert rows == [[2.0, 0.0, 0.0, 1.0, 0.0], [9.0, 1.0, 0.0, 0.0, 0.0]]


def test_true_and_false_are_one_input(text: Callable[..., str]) -> None:
    data = CSV(text("open,y\nTrue,0\nfalse,1\nTRUE,1\n"), "y")()
    assert (data.x.tolist(), data.plan) == ([[1.0], [0.0], [1.0]], None)


def test_numbers_without_holes_are_stored_and_scaled_as_ever(text: Callable[..., str]) -> None:
    data = CSV(text("a,b,y\n1,10,0\n3,30,1\n"), "y")()
    assert (data.plan, type(data.scale).__name__, data.remarks) == (None, "Scale", ())
    assert data.standardise_x


# ------------------------------------------------------------------------------------- which columns, and as what


def test_kinds_of_columns(text: Callable[..., str]) -> None:
    rows = [f"{'ns'[i % 2]},id{i},t{i % 55},2024-01-{i % 28 + 1:02},x,,{i % 7},{i % 2}" for i in range(120)]
    data = CSV(text("\n".join(["region,key,town,day,same,empty,n,y", *rows])), "y")()
    assert (data.features, data.left_out) == (("region", "n"), ("key", "town", "day", "same", "empty"))
    assert data.remarks == (
        "left out: key (text, different in every row), town (text with 55 different values; data.categories=[town] "
        "uses it all the same), day (dates; data.time=day tests on each client's latest rows), "
        "same (text, always 'x'), empty (no values)",
        "categories: region (n, s)",
    )
    named = CSV(text("\n".join(["region,key,town,day,same,empty,n,y", *rows])), "y", categories=("town", "n"))()
    assert named.features == ("region", "town", "n")
    assert named.plan is not None
    assert [len(column.values or ()) for column in named.plan.columns] == [2, 55, 7]
    assert CSV(text("a,b,y\nq,1,0\nq,2,1\nr,3,1\nr,4,0\n"), "y", categories="none")().features == ("b",)


def test_too_many_values_are_refused_where_they_were_asked_for(text: Callable[..., str]) -> None:
    rows = "".join(f"t{i},{i % 3},{i % 2}\n" for i in range(1100))
    with pytest.raises(CoterieError, match=r"column 'a': text with more than 1,000 different values") as refused:
        CSV(text("a,b,y\n" + rows), "y", categories=("a",))()
    assert refused.value.code == "data-column-invalid"
    with pytest.raises(CoterieError, match=r"column 'a', line 2: 't0' is no number, and .*more than 1,000"):
        CSV(text("a,b,y\n" + rows), "y", x=("a", "b"))()
    assert CSV(text("a,b,y\n" + rows), "y")().left_out == ("a",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"missing": "median"}, r"CSV.missing: must be 'mean', 'drop' or 'refuse'"),
        ({"categories": {"region": (True,)}}, r"CSV.categories"),
        ({"leave_out": "prise"}, r"data.leave_out: .*Did you mean 'price'"),
        ({"categories": ("regoin",)}, r"data.categories: .*Did you mean 'region'"),
        ({"missing": {"y": 3.0}}, r"data.missing: .*column 'y' is not an input"),
        ({"categories": {"region": ("n", "n")}}, r"needs different values, at least one; given: n, n"),
        ({"categories": {"region": ("n",)}, "missing": {"region": 1.0}}, r"column 'region' has categories"),
        ({"leave_out": ("y",)}, r"column 'y' is asked to be two things"),
        ({"leave_out": ("price",), "x": ("price",)}, r"column 'price' is asked to be two things"),
        ({"missing": {"region": 1.0}}, r"data.missing: .*column 'region' has no numbers"),
        ({"missing": {"price": 1.0}, "time": "price"}, r"data.missing: .*column 'price' is not an input"),
        ({"time": "price"}, r"column 'price', line 3: the time is missing; write numbers in every row"),
        ({"time": "region"}, r"column 'region', line 2: 'n' is no time"),
        ({"time": "y", "client": "region"}, r"column 'y' is asked to be two things"),
    ],
)
@pytest.mark.filterwarnings(HOLES)
def test_what_is_said_of_columns_is_checked(text: Callable[..., str], options: dict[str, Any], message: str) -> None:
    path = text("price,region,y\n1,n,0\n,s,1\n2,n,1\n3,s,0\n")
    with pytest.raises(CoterieError, match=message):
        CSV(path, **({"y": "y"} | options))()


@pytest.mark.parametrize("start", [0, 20_240_000_000])
def test_identifiers_are_suspected_and_kept(text: Callable[..., str], start: int) -> None:
    """Numbers that single precision would make the same are told apart."""
    rows = "".join(f"{start + i},{i % 7},{i % 2}\n" for i in range(50))
    with pytest.warns(CoterieWarning, match=r"column 'id' has another whole number .*data.leave_out=\[id\]"):
        data = CSV(text("id,b,y\n" + rows), "y")()
    assert data.features == ("id", "b")
    assert CSV(text("id,b,y\n" + rows), "y", leave_out=("id",))().features == ("b",)
    twice = rows + f"{start},1,0\n"
    assert CSV(text("id,b,y\n" + twice), "y")().features == ("id", "b")


# ------------------------------------------------------------------------------------------------------- by time


def test_the_latest_rows_of_each_client_are_its_test_rows(text: Callable[..., str]) -> None:
    path = text(
        "v,when,y,client\n1,2024-03-01,0,a\n2,2023-01-01,1,a\n3,2024-02-01,0,a\n4,2022-05-05,1,a\n"
        "5,2020-01-01,0,b\n6,2021-01-01,1,b\n"
    )
    federation = coterie.federate(CSV(path, "y", time="when", standardise=False), coterie.data.Natural(test=0.5))
    assert federation.features == ("v",)  # a time is no input
    for client, split, expected in ((0, "train", [2, 4]), (0, "test", [1, 3]), (1, "train", [5]), (1, "test", [6])):
        assert federation.samples(client, split)[0][:, 0].tolist() == expected  # type: ignore[arg-type]
    asked = CSV(text("v,year,y,client\n1,2001,0,a\n2,2002,1,a\n"), "y", time="year", x=("v", "year"))()
    assert asked.features == ("v", "year")


def test_validation_is_between_training_and_test_in_time() -> None:
    v = np.arange(20.0)
    frame: Any = {"v": v[::-1] % 7, "t": v[::-1], "y": [0, 1] * 10, "who": ["a"] * 10 + ["b"] * 10}
    federation = coterie.federate(from_frame(frame, "y", client="who", time="t"))
    held = with_validation(federation, 0.25, 0)
    assert held.val is not None
    for client in range(2):
        train, val, test = (frame["t"][part.row(client).numpy()] for part in (held.train, held.val, held.test))
        assert (len(train), len(val), len(test)) == (6, 2, 2)
        assert train.max() < val.min() <= val.max() < test.min()


def test_time_and_split_exclude_each_other(text: Callable[..., str]) -> None:
    with pytest.raises(CoterieError, match="says already which rows are for testing") as refused:
        CSV(text("v,t,y,split\n1,1,0,train\n2,2,1,test\n"), "y", time="t")()
    assert refused.value.code == "config-conflict"
    with pytest.raises(CoterieError, match="the same time in every row"):
        CSV(text("v,t,y\n1,1,0\n2,1,1\n"), "y", time="t")()


# -------------------------------------------------------------------------------------- tables in memory, parquet


@pytest.mark.filterwarnings(HOLES)
def test_csv_parquet_and_frames_are_read_alike(text: Callable[..., str], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(
        {
            "price": [1.5, None, 3.0, 4.0] * 3,
            "region": ["n", "s", None, "n"] * 3,
            "open": [True, False, None, True] * 3,
            "day": pandas.date_range("2024-01-01", periods=12),
            "size": pandas.Categorical(["S", "L", "S", "L"] * 3),
            "rooms": pandas.array([1, 2, None, 4] * 3, dtype="Int64"),
            "y": [0, 1, 1] * 4,
            "client": list("aabb") * 3,
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    made = []
    for read in (CSV(str(tmp_path / "t.csv"), "y", time="day"), Parquet(str(tmp_path / "t.parquet"), "y", time="day")):
        made.append(coterie.federate(read))
    made.append(coterie.federate(from_frame(frame, "y", client="client", time="day", name="t")))
    assert len({federation.identity() for federation in made}) == 1
    assert made[0].features == (
        *("price", "price missing", "region=n", "region=s", "region missing"),
        *("open", "open missing", "size=L", "size=S", "rooms", "rooms missing"),
    )


def test_from_frame_says_what_it_leaves_out_and_refuses_what_is_no_table() -> None:
    frame = {"a": [1.0, 2.0, 3.0], "note": ["x", "y", "z"], "y": [0, 1, 0]}
    with pytest.warns(CoterieWarning, match=r"left out: note \(text, different in every row\)"):
        assert from_frame(frame, "y").features == ("a",)
    with pytest.raises(CoterieError, match="without named columns") as refused:
        from_frame(np.ones((2, 2)), "y")
    assert refused.value.code == "data-type"
    with pytest.raises(CoterieError, match=r"Did you mean 'note'"):
        from_frame(frame, "y", leave_out=("notes",))


def test_tables_of_clients_are_read_as_one() -> None:
    first: Any = {"price": [2.0, None], "region": ["n", "s"], "t": [1, 2]}
    second: Any = {"region": ["s", "w"], "t": [2, 1], "price": [4.0, 6.0]}
    with pytest.warns(CoterieWarning, match=r"the clients' tables: values are missing in 1 of 4 rows: price \(1\)"):
        made = Federation.from_arrays(
            [(first, [0, 1]), (second, [1, 0])], test=0, leave_out=["t"], categories=("region",), standardise=False
        )
    assert inputs(made) == {
        "price": [2.0, 4.0],
        "price missing": [0.0, 1.0],
        "region=n": [1.0, 0.0],
        "region=s": [0.0, 1.0],
        "region=w": [0.0, 0.0],
    }
    with pytest.warns(CoterieWarning) as said:
        timed = Federation.from_arrays([(first, [0, 1]), (second, [1, 0])], test=0.5, time="t")
    assert "left out: region (text with 3 different values" in str(said[1].message)
    assert (timed.samples(1, "train")[1].tolist(), timed.samples(1, "test")[1].tolist()) == ([0], [1])
    assert timed.features == ("price",)
    assert timed.remarks[-2] == "test rows: each client's latest by 't'"
    with pytest.raises(CoterieError, match=r"client 0, row 1 of its table .*: the value is missing"):
        Federation.from_arrays([(first, [0, 1]), (second, [1, 0])], missing="refuse", leave_out=["region"])
    with pytest.raises(CoterieError, match="client 0 has test samples of its own"):
        Federation.from_arrays([(second, [0, 1], second, [0, 1])], time="t", leave_out=["region"])
    with pytest.raises(CoterieError, match="for tables with named columns"):
        Federation.from_arrays([(np.ones((2, 2)), [0, 1])], leave_out=["t"])


def test_rows_with_holes_are_dropped_with_their_labels() -> None:
    table: Any = {"price": [2.0, None, 4.0]}
    with pytest.warns(CoterieWarning, match="These rows are left out"):
        made = Federation.from_arrays([(table, torch.tensor([0, 2, 1])), (table, [0, 2, 1])], test=0, missing="drop")
    assert [made.samples(c, "train")[1].tolist() for c in (0, 1)] == [[0, 1], [0, 1]]


@pytest.mark.filterwarnings(HOLES)
def test_labels_are_counted_before_rows_are_dropped() -> None:
    table: Any = {"price": [2.0, None, 4.0]}
    with pytest.raises(CoterieError, match="client 0 has 3 inputs but 2 labels"):
        Federation.from_arrays([(table, [0, 1])], missing="drop")


# ---------------------------------------------------------------------------------------------------- round trips

cells = st.one_of(st.none(), st.floats(-100, 100, width=32))
names = st.one_of(st.none(), st.sampled_from(["north", "south", "Ost", "x,y", "1"]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(st.tuples(cells, names, cells), min_size=6, max_size=20), seed=st.integers(0, 1000))
@pytest.mark.filterwarnings("ignore::coterie.core.errors.CoterieWarning")
def test_the_order_of_rows_and_columns_does_not_matter(rows: list[tuple[Any, ...]], seed: int) -> None:
    """Each row's inputs are the same, and a table of new rows, in any order, gives what training saw."""
    rows = [*rows, (1.0, "north", 2.0), (3.0, "south", 2.5)]
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    table: Any = {name: [row[i] for row in rows] for i, name in enumerate(("a", "region", "b"))}
    mixed: Any = {name: [table[name][i] for i in order] for name in ("region", "b", "a")}
    plain, other = (
        Federation.from_arrays(
            [(t, [0, 1] * (len(rows) // 2) + [0] * (len(rows) % 2))], test=0, standardise=True, categories=("region",)
        )
        for t in (table, mixed)
    )
    assert sorted(plain.features or ()) == sorted(other.features or ())
    place = [(other.features or ()).index(name) for name in plain.features or ()]
    ours, theirs = plain.samples(0, "train")[0], other.samples(0, "train")[0][:, place]
    torch.testing.assert_close(ours[order], theirs)
    scale = plain.scales[0]
    if isinstance(scale, TableScale):
        assert torch.equal(scale(mixed), ours[order])
        assert torch.equal(scale([list(row) for row in rows]), ours)


def test_the_encoding_is_what_it_says() -> None:
    columns = (StoredColumn("a"), StoredColumn("r", ("n", "s", "w")))
    x = torch.tensor([[1.0, 1.0], [NAN, 0.0], [3.0, NAN], [9.0, 2.0]])
    scale, coded = TablePlan(columns).fit(x, torch.tensor([0, 2]))
    assert scale.columns == (
        InputColumn("a", None, 2.0, False),
        InputColumn("r", ("s",), None, True, True, ("n", "w")),
    )
    assert scale.inputs == ("a", "r=s", "r missing")
    assert coded[:2, 1].tolist() == [0.0, 1.0]
    assert x[0, 1] == 1.0  # the table itself stays as it was
    assert scale(coded).tolist() == [[-1, 1, 0], [0, 0, 0], [1, 0, 1], [7, 0, 0]]
    with pytest.warns(
        CoterieWarning, match=r"predict: column 'r': 'mars' is in no training row \(s\); its inputs are all 0"
    ):
        assert scale(scale.stored({"a": ["3", ""], "r": ["mars", None]}, "predict")).tolist() == [[1, 0, 0], [0, 0, 1]]
