"""A client's own data, from a file or a function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.network.client_data import own_data


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    np.savez(tmp_path / "split.npz", x=x, y=y, split=np.array(["train"] * 15 + ["test"] * 5))
    np.savez(tmp_path / "many.npz", x=x, y=y, client=np.arange(20) % 2)
    lines = ["age,weight,outcome", *(f"{i},{i * 2},{'yes' if i % 2 else 'no'}" for i in range(10))]
    (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "clinic_records.py").write_text(
        "import numpy as np\nimport coterie\n\n"
        "def pair(n=12):\n    return np.ones((n, 2), np.float32), np.arange(n) % 2\n\n"
        "def federation():\n    return coterie.Federation.from_arrays([pair(), pair()])\n\n"
        "def broken():\n    raise ValueError('no such ward')\n\n"
        "def nothing():\n    return 3\n\nvalue = 4\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_and_its_held_out_part(place: Path) -> None:
    plain = own_data("plain.npz")
    assert (len(plain), len(plain.train.numbers), len(plain.test.numbers)) == (1, 16, 4)
    assert len(own_data("plain.npz,test=0.5").test.numbers) == 10
    split = own_data("split.npz")
    assert (len(split.train.numbers), len(split.test.numbers)) == (15, 5)
    assert split.outputs == 3


def test_a_table_with_a_column_named_after_the_comma(place: Path) -> None:
    table = own_data("visits.csv,y=outcome,classes=maybe|yes|no")
    assert (table.input_shape, table.outputs, table.kind) == ((2,), 3, "classification")
    x, y = (torch.cat(part) for part in zip(table.samples(0, "train"), table.samples(0, "test"), strict=True))
    assert sorted(x[:, 1].tolist()) == [2.0 * i for i in range(10)]  # as they are, not standardised
    assert [int(label) for label in y] == [1 if int(age) % 2 else 2 for age in x[:, 0]]
    assert (table.features, table.class_names) == (("age", "weight"), ("maybe", "yes", "no"))


def test_a_function_and_its_parameters(place: Path) -> None:
    found = own_data("clinic_records:pair,n=20")
    assert len(found.train.numbers) + len(found.test.numbers) == 20


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("gone.npz", "gone.npz"),
        ("data.xls", "expected module:function"),
        ("many.npz", "several clients"),
        ("clinic_records:nothing", "gave a int"),
        ("clinic_records:value", "is not a data set"),
        ("clinic_records:pair,k=3", "does not take these parameters"),
        ("clinic_records:missing", "has no 'missing'"),
        ("plain.npz,x", "expected key=value"),
        ("plain.npz,classes=a|b", "these are numbers"),
        ("visits.csv,y=outcome", r"classes=no\|yes"),
        ("visits.csv,y=outcome,classes=yes|maybe", "has no 'no'"),
        ("visits.csv,y=outcome,classes=yes|no|no", "names one twice"),
        ("clinic_records:broken", "ValueError: no such ward"),
    ],
)
def test_a_mistake_is_told_in_words(what: str, words: str, place: Path) -> None:
    with pytest.raises(CoterieError, match=words):
        own_data(what)


def test_columns_are_the_same_inputs_at_every_client(place: Path) -> None:
    """Nothing goes by one client's rows: values and numbers are given, and text is left out without them."""
    (place / "a.csv").write_text("price,region,note,y\n1,n,q,0\n,s,q,1\n3,x,r,1\n4,,r,0\n")
    (place / "b.csv").write_text("price,region,note,y\n1,n,q,0\n2,n,q,1\n3,n,r,1\n")
    words = "y=y,missing.price=9.5,categories.region=no|n|s"
    with pytest.warns(CoterieWarning, match=r"missing in 2 of 4 rows: price \(1\), region \(1\)"):
        first = own_data(f"a.csv,{words},test=0")
    second = own_data(f"b.csv,{words}")
    assert first.features == second.features == ("price", "price missing", "region=no", "region=n", "region=s")
    assert first.samples(0, "train")[0].tolist() == [
        *([1.0, 0.0, 0.0, 1.0, 0.0], [9.5, 1.0, 0.0, 0.0, 1.0], [3.0, 0.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0, 0.0]),
    ]
    assert first.remarks[0] == "left out: note (text with 2 different values that data.categories does not name)"
    assert own_data("b.csv,y=y").features == ("price",)
    assert own_data("b.csv,y=y,leave_out=region|note").remarks == ()
    with pytest.warns(CoterieWarning, match="left out"):
        assert len(own_data("a.csv,y=y,missing=drop,test=0").train.numbers) == 3


def test_the_latest_rows_are_held_out(place: Path) -> None:
    (place / "t.csv").write_text("v,t,y\n" + "".join(f"{i % 3},{9 - i},{i % 2}\n" for i in range(10)))
    found = own_data("t.csv,y=y,time=t,test=0.3")
    assert (found.test.numbers.tolist(), found.features) == ([0, 1, 2], ("v",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("missing=mean", r"nobody knows the mean over all clients.*missing.price=9.5, or missing=drop"),
        ("categories=auto", r"cannot know the values that others have.*categories.region=north\|south"),
        ("fill.price=3", r"'fill.price': expected missing.COLUMN=NUMBER or categories.COLUMN=a\|b"),
        ("leave_out=region", r"column 'price', line 3: the value is missing; .*missing.price=NUMBER"),
    ],
)
def test_what_one_client_cannot_know_is_refused(place: Path, words: str, message: str) -> None:
    (place / "a.csv").write_text("price,region,y\n1,n,0\n,s,1\n3,s,1\n4,n,0\n")
    with pytest.raises(CoterieError, match=message):
        own_data(f"a.csv,y=y,{words}")
