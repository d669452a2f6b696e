"""A client's own data, from a file or a function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.network.client.data import own_data


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
        ("clinic_records:value", "not a function"),
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
