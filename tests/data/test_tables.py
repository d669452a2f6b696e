"""npz, csv and parquet files: exact values, and every way a file can be wrong."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import raises
from coterie.core.errors import CoterieError, CoterieWarning
from coterie.data.dataset import Dataset
from coterie.data.federate import federate
from coterie.data.federation import Federation, Ragged
from coterie.data.npz import NPZ
from coterie.data.partitions.by_client import IID, Natural
from coterie.data.scale import Scale
from coterie.data.table import CSV, Parquet, Table

Y = np.array([0, 2, 1])
BYTES = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., str]:
    def write(**arrays: Any) -> str:
        np.savez(tmp_path / "größe 数.npz", **arrays)
        return str(tmp_path / "größe 数.npz")

    return write


@pytest.fixture
def text(tmp_path: Path) -> Callable[..., str]:
    def write(content: str | bytes, name: str = "häuser.csv") -> str:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path / name)

    return write


@pytest.fixture
def arrow(tmp_path: Path) -> Callable[..., str]:
    pa = pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write(columns: dict[str, Any]) -> str:
        parquet.write_table(pa.table(columns), tmp_path / "table.parquet")
        return str(tmp_path / "table.parquet")

    return write


def scaled(data: Dataset) -> list[Any]:
    """As a federation of these samples, all of one client, would see them."""
    one = replace(data, client=np.zeros(len(data.y), dtype=np.int64), client_names=None)
    made = federate(one, Natural(test=0.0 if data.official is None else "official"))
    return made.domains[0].inputs(data.x).tolist()


def owned(data: Dataset) -> list[str]:
    """The client of each sample, by name."""
    assert data.client is not None
    assert data.client_names is not None
    return [data.client_names[i] for i in data.client]


# --------------------------------------------------------------------------------------------------------------- npz


def test_npz_keeps_bytes_and_gives_grey_images_a_channel(npz: Callable[..., str]) -> None:
    data = NPZ(npz(x=BYTES, y=Y))()
    assert (data.name, data.x.dtype, tuple(data.x.shape)) == ("größe 数", torch.uint8, (3, 1, 2, 2))
    assert data.x.flatten().tolist() == list(range(12))
    assert torch.equal(torch.tensor(scaled(data)), data.x / 255)
    assert (data.y.dtype, data.y.tolist(), data.classes, data.kind) == (torch.int64, [0, 2, 1], 3, "classification")
    assert data.client is None
    assert data.official is None


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ("f2", torch.float16),
        ("f4", torch.float32),
        ("f8", torch.float32),
        (">f4", torch.float32),
        ("i8", torch.int64),
        ("i2", torch.int16),
        ("u2", torch.int32),
        ("u4", torch.int64),
        ("?", torch.uint8),
    ],
)
def test_npz_other_numbers_are_stored_small_and_not_scaled(
    npz: Callable[..., str], stored: str, kept: torch.dtype
) -> None:
    data = NPZ(npz(x=np.array([[0, 1], [1, 1], [1, 0]]).astype(stored), y=Y))()
    assert data.x.dtype == kept
    assert scaled(data) == [[0, 1], [1, 1], [1, 0]]


def test_npz_divisor_overrides(npz: Callable[..., str]) -> None:
    assert scaled(NPZ(npz(x=np.array([[16], [8]], dtype=np.uint8), y=Y[:2]), divisor=16)()) == [[1.0], [0.5]]
    assert scaled(NPZ(npz(x=np.array([4.0, 8.0]), y=Y[:2]), divisor=4)()) == [[1.0], [2.0]]


def test_npz_channels_are_moved_only_if_asked(npz: Callable[..., str]) -> None:
    x = np.arange(2 * 5 * 6 * 3, dtype=np.uint8).reshape(2, 5, 6, 3)
    path = npz(x=x, y=Y[:2])
    moved = NPZ(path, channels="last")()
    assert tuple(moved.x.shape) == (2, 3, 5, 6)
    assert moved.x.is_contiguous()
    assert moved.x[1, 2, 3, 4] == x[1, 3, 4, 2]
    assert tuple(NPZ(path, channels="first")().x.shape) == (2, 5, 6, 3)
    with raises("data-shape", match=r"data.channels: .*looks like .*channels: last, or first"):
        NPZ(path)()
    with raises("data-shape", match=r"data.channels: last needs images .*\(3, 2, 2\)"):
        NPZ(npz(x=BYTES, y=Y), channels="last")()


def test_npz_words_stay_whole_numbers(npz: Callable[..., str]) -> None:
    data = NPZ(npz(x=np.array([[5, 6], [7, 8]], dtype=np.int32), y=Y[:2]), words=True)()
    assert data.scale is None
    assert (data.x.dtype, data.x.tolist()) == (torch.int64, [[5, 6], [7, 8]])
    with raises("data-shape", match="expected whole numbers"):
        NPZ(npz(x=np.zeros((2, 2)), y=Y[:2]), words=True)()


def test_npz_labels_by_name_and_targets(npz: Callable[..., str]) -> None:
    named = NPZ(npz(x=BYTES, y=np.array(["wolf", "Äffchen", "ape"])))()
    assert (named.y.tolist(), named.classes) == ([1, 2, 0], 3)
    raw = NPZ(npz(x=BYTES, y=np.array(["wolf", "Äffchen".encode(), "ape"][::2], dtype="S")[[0, 1, 0]]))()
    assert (raw.y.tolist(), raw.classes) == ([1, 0, 1], 2)
    whole = NPZ(npz(x=BYTES, y=np.array([1.0, 2.0, 3.0])))()
    assert (whole.kind, whole.y.tolist(), whole.classes) == ("regression", [[1.0], [2.0], [3.0]], 1)
    assert whole.y.dtype == torch.float32
    assert NPZ(npz(x=BYTES, y=np.ones((3, 2))))().classes == 2
    assert NPZ(npz(x=BYTES, y=Y[:, None]))().y.tolist() == [0, 2, 1]
    assert NPZ(npz(x=BYTES, y=np.array([True, False, True])))().y.tolist() == [1, 0, 1]


def test_npz_client_and_split_are_used_if_they_are_there(npz: Callable[..., str]) -> None:
    data = NPZ(npz(x=BYTES, y=Y, client=np.array([10, 9, 10]), split=np.array(["Train", "TEST", "val"])))()
    assert (data.client_names, owned(data)) == (("9", "10"), ["10", "9", "10"])
    assert data.official is not None
    assert data.official.tolist() == [False, True, False]
    other = NPZ(
        npz(a=BYTES, b=Y, who=np.array(["zoë", "al", "al"]), t=np.array([0, 0, 1])), "a", "b", client="who", split="t"
    )
    data = other()
    assert (data.client_names, owned(data)) == (("al", "zoë"), ["zoë", "al", "al"])
    assert data.official is not None
    assert data.official.tolist() == [False, False, True]
    assert NPZ(npz(x=BYTES, y=Y, split=np.zeros(3, dtype=bool)))().official is None


@pytest.mark.parametrize("parts", [[0, 1, 2], ["0", "1", "2"], ["train", "val", "2"]])
def test_three_numbers_are_train_val_and_test(npz: Callable[..., str], parts: list[Any]) -> None:
    official = NPZ(npz(x=BYTES, y=Y, split=np.array(parts)))().official
    assert official is not None
    assert official.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": BYTES, "lable": Y}, {}, r"data.y: .* has no 'y'"),
        (
            {"x": BYTES, "y": Y, "owner": Y},
            {"client": "onwer"},
            r"data.client: .*Did you mean 'owner'\? Known: owner, x, y",
        ),
        ({"x": BYTES, "y": Y[:2]}, {}, r"array 'y' has 2 samples, x has 3"),
        ({"x": BYTES, "y": Y, "client": Y[:1]}, {}, r"array 'client' has 1 samples, x has 3"),
        ({"x": BYTES[:0], "y": Y[:0]}, {}, r"has 0 samples"),
        ({"x": np.uint8(3), "y": Y}, {}, r"array 'y' has 3 samples, x has 1"),
        ({"x": np.array(["a", "b", "c"]), "y": Y}, {}, r"array 'x' has <U1 .*expected numbers"),
        ({"x": BYTES, "y": Y - 1}, {}, r"array 'y', sample 0: the label -1 is negative; number the classes 0..K-1"),
        ({"x": BYTES, "y": np.ones((3, 2), dtype=int)}, {}, r"one whole number per sample"),
        ({"x": BYTES, "y": np.ones(3, dtype=complex)}, {}, r"array 'y' has values of complex128"),
        ({"x": BYTES, "y": np.array([None] * 3)}, {}, r"array 'y' cannot be read .*not Python objects"),
        ({"x": BYTES, "y": Y, "client": np.array(["a", "", "b"])}, {}, r"'client', sample 1: the value is missing"),
        ({"x": BYTES, "y": Y, "client": np.array([0, 0.5, 1])}, {}, r"'client', sample 0: 0.0 is no name of a client"),
        ({"x": BYTES, "y": Y, "split": np.array([0, 1, 3])}, {}, r"'split', sample 2: 3 is no split; write train"),
        ({"x": BYTES, "y": Y, "split": np.ones(3, dtype=int)}, {}, r"every sample is a test sample"),
    ],
)
def test_npz_refused(npz: Callable[..., str], arrays: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        NPZ(npz(**arrays), **options)()


def test_npz_that_is_none(tmp_path: Path, text: Callable[..., str], npz: Callable[..., str]) -> None:
    with raises("data-file-missing", match=r"data.path: .*gone.npz does not exist; give a file, seen from"):
        NPZ(str(tmp_path / "gone.npz"))()
    with raises("data-file-missing"):
        NPZ(str(tmp_path))()
    with raises("data-file-format", match=r"is not an npz file; numpy.savez"):
        NPZ(text("x,y", "text.npz"))()
    single = io.BytesIO()
    np.save(single, BYTES)
    with raises("data-file-format", match=r"is not an npz file"):
        NPZ(text(single.getvalue(), "single.npz"))()
    whole = Path(npz(x=np.random.default_rng(0).integers(0, 255, 999, dtype=np.uint8), y=np.zeros(999))).read_bytes()
    with raises("data-file-damaged", match=r"array 'x' cannot be read"):
        NPZ(text(whole[:400] + bytes(50) + whole[450:], "broken.npz"))()


# -------------------------------------------------------------------------------------------------- csv, and parquet

COLUMNS: dict[str, list[Any]] = {
    "age": [20, 40, 60],
    "height": [1.5, 1.5, 1.5],
    "town": ["Rom", "Bonn, am Rhein", "Zürich"],
    "ill": [1, 0, 1],
    "who": ["bo", "äl", "bo"],
    "part": ["train", "train", "test"],
}
PLAIN = (
    "age,height,town,ill,who,part\r\n20,1.5,Rom,1,bo,train\r\n"
    '40,1.5,"Bonn, am Rhein",0,äl,train\r\n60,1.5,Zürich,1,bo,test\r\n'
)


def roles(kind: type[Table], path: str, **more: Any) -> Table:
    return kind(path, **({"y": "ill", "client": "who", "split": "part"} | more))


def check_common(data: Dataset) -> None:
    assert data.x.tolist() == [[20, 1.5], [40, 1.5], [60, 1.5]]
    assert data.x.dtype == torch.float32
    assert scaled(data) == [[-1, 0], [1, 0], [3, 0]]  # measured on the two training rows; a constant column is 0
    assert (data.y.tolist(), data.classes) == ([1, 0, 1], 2)
    assert owned(data) == ["bo", "äl", "bo"]
    assert data.official is not None
    assert data.official.tolist() == [False, False, True]


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        "\ufeff" + PLAIN.replace("\r\n", "\n"),
        PLAIN.replace("Bonn, am Rhein", "Bonn; am Rhein").replace(",", ";"),
        PLAIN.replace(",", "\t"),
        "\r\n" + PLAIN.replace("\r\n", "\r\n\r\n"),
        PLAIN.replace("am Rhein", "am\nRhein"),
        PLAIN.replace("age,height,town", '"age","height","to;w;n;;;;;"'),
        PLAIN.replace("age,", " age ,").replace(",bo,", ", bo,"),
    ],
    ids=["crlf", "bom", "semicolon", "tab", "blank lines", "line break in a cell", "quoted header", "spaces"],
)
def test_csv_values(text: Callable[..., str], content: str) -> None:
    data = roles(CSV, text(content))()
    check_common(data)
    check_common(roles(CSV, text(content), x=("age", "height"))())
    assert data.name == "häuser"


def test_parquet_values(arrow: Callable[..., str]) -> None:
    import pyarrow as pa

    path = arrow(COLUMNS | {"part": pa.array(COLUMNS["part"]).dictionary_encode()})
    check_common(roles(Parquet, path)())


def test_parquet_kinds_of_numbers(arrow: Callable[..., str]) -> None:
    from decimal import Decimal

    import pyarrow as pa

    path = arrow(
        {"a": pa.array([1, 2], pa.uint8()), "b": [True, False], "c": [Decimal("1.5"), Decimal("2")]}
        | {"big": [2**60, 1], "day": pa.array([1, 2], pa.date32()), "y": [0, 1]}
    )
    assert Parquet(path, "y")().x.tolist() == [[1, 1, 1.5, 2.0**60], [2, 0, 2, 1]]


@pytest.mark.parametrize("kind", [CSV, Parquet])
def test_chosen_features_in_the_order_given(kind: type[Table], text: Any, arrow: Any) -> None:
    path = text(PLAIN) if kind is CSV else arrow(COLUMNS)
    data = roles(kind, path, x=("height", "age"), standardise=False)()
    assert data.x.tolist() == [[1.5, 20], [1.5, 40], [1.5, 60]]
    assert scaled(data) == data.x.tolist()


def test_client_and_split_columns_need_no_naming(text: Callable[..., str]) -> None:
    path = text("a,y,client,split\n1,0,7,train\n2,1,7,0\n3,1,12,1\n")
    data = CSV(path, "y")()
    assert (data.client_names, owned(data), data.x.shape[1]) == (("7", "12"), ["7", "7", "12"], 1)
    assert data.official is not None
    assert data.official.tolist() == [False, False, True]
    as_features = CSV(path, "y", x=("client", "a"))()
    assert as_features.client is None
    assert as_features.x.tolist() == [[7, 1], [7, 2], [12, 3]]
    assert CSV(path, "client")().client is None


@pytest.mark.parametrize(
    ("cells", "task", "kind", "y", "classes"),
    [
        (["0", "3", "1"], None, "classification", [0, 3, 1], 4),
        (["0.0", "3.0", "1.0"], None, "classification", [0, 3, 1], 4),
        (["0", "3", "1"], "regression", "regression", [[0], [3], [1]], 1),
        (["0", "2.5", "-1"], None, "regression", [[0], [2.5], [-1]], 1),
        (["1.0", "2.0", "0.0"], "classification", "classification", [1, 2, 0], 3),
        (["no", "yes", "no"], None, "classification", [0, 1, 0], 2),
        (["1", "b", "10"], None, "classification", [0, 2, 1], 3),
    ],
)
def test_csv_labels_or_targets(
    text: Callable[..., str], cells: list[str], task: Any, kind: str, y: list[Any], classes: int
) -> None:
    data = CSV(text("a,y\n" + "".join(f"1,{cell}\n" for cell in cells)), "y", task=task)()
    assert (data.kind, data.y.tolist(), data.classes) == (kind, y, classes)


@pytest.mark.parametrize(
    ("values", "kind", "y"),
    [
        ([0, 2], "classification", [0, 2]),
        ([0.0, 2.0], "classification", [0, 2]),
        ([0.5, 2.0], "regression", [[0.5], [2.0]]),
        ([True, False], "classification", [1, 0]),
        (["b", "a"], "classification", [1, 0]),
    ],
)
def test_parquet_labels_or_targets(arrow: Callable[..., str], values: list[Any], kind: str, y: list[Any]) -> None:
    data = Parquet(arrow({"a": [1, 2], "y": values}), "y")()
    assert (data.kind, data.y.tolist()) == (kind, y)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, r"data.y: .*has no 'y'"),
        ("a,y\n", {}, r"data.path: .* has no rows"),
        (
            "a,lable\n1,2\n",
            {"y": "label"},
            r"data.y: .*first line names the columns.*Did you mean 'lable'\? Known: a, lable",
        ),
        ("a,y\n1,2\n", {"x": ("b",)}, r"data.x: .* has no 'b'.* Known: a, y"),
        ("a,y\n1,2\n", {"x": ("a", "y")}, r"column 'y' is asked to be two things"),
        ("a,y\n1,2\n", {"client": "y"}, r"column 'y' is asked to be two things"),
        (",a,y\n0,1,2\n", {}, r"column 1 has no name in the header; .*index=False"),
        ("a,a,y\n0,1,2\n", {}, r"two columns are called 'a'"),
        ("a,y\n1,2\n\n1\n", {}, r"line 4: 1 cells, but the header names 2 columns"),
        ("a,y\n1,2\n1,2,3\n", {}, r"line 3: 3 cells"),
        ("a,b,y\n1,5,2\n2,,2\n", {"missing": "refuse"}, r"column 'b', line 3: the value is missing; .*missing=drop"),
        ("a,b,y\n1,5,2\n2,six,2\n", {}, r"column 'b', line 3: 'six' is no number \(1.5 is\); correct it"),
        ("a;b;y\n1;5;2\n2;1,5;2\n", {}, r"column 'b', line 3: '1,5' is no number"),
        ("a,b,y\n1,nan,2\n2,3,2\n", {"missing": "refuse"}, r"column 'b', line 2: the value is missing"),
        ("a,b,y\n1,1e60,2\n2,3,2\n", {}, r"column 'b', line 2: '1e60' is no number"),
        ("a,b,y\n1,x,2\n2,z,2\n", {"x": ("a", "b")}, r"column 'b', line 2: 'x' is no number"),
        ("a,y\nq,2\nr,2\n", {}, r"data.x: .*no feature columns"),
        ("y\n2\n", {}, r"data.x: .*no feature columns"),
        ("a,y\n1,0\n1,\n", {"missing": "refuse"}, r"column 'y', line 3: the value is missing"),
        ("a,y\n1,0.5\n1,inf\n", {}, r"column 'y', line 3: NaN or Inf"),
        ("a,y\n1,0\n1,-1\n", {}, r"column 'y', line 3: the label -1 is negative"),
        ("a,y\n1,0\n1,450000\n", {}, r"column 'y' would have 450,001 classes in 2 rows; write task: regression"),
        ("a,y\n1,0\n1,1.5\n", {"task": "classification"}, r"column 'y', line 3: 1.5 is no class"),
        ("a,y\n1,p\n1,q\n", {"task": "regression"}, r"column 'y', line 2: 'p' is no number, and task is regression"),
        ("a,y\n1,1\n1,q\n", {"task": "regression"}, r"column 'y', line 3: 'q' is no number, and task is regression"),
        ("a,y,client\n1,0,al\n1,1,  \n", {"missing": "refuse"}, r"column 'client', line 3: the value is missing"),
        ("a,y,split\n1,0,train\n1,1,holdout\n", {}, r"column 'split', line 3: 'holdout' is no split"),
        ("a,y,split\n1,0,test\n", {}, r"every sample is a test sample"),
        ('a,y\n1,"0\n', {}, r"is not a csv file"),
        (b"a,y\n1,\xff\n", {}, r"is not UTF-8 text .*; save it as UTF-8"),
    ],
)
def test_csv_refused(text: Callable[..., str], content: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        CSV(text(content), **({"y": "y"} | options))()


def test_csv_names_the_line_however_far_down(text: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.data.table.HELD_AS_TEXT", 10)
    rows = [f"{i},{i % 2}" for i in range(35)]
    assert CSV(text("\n".join(["a,y", *rows])), "y")().x[:, 0].tolist() == list(range(35))
    rows[27] = "oops,0"
    with raises("data-cell", match="column 'a', line 29: 'oops'"):
        CSV(text("\n".join(["a,y", *rows])), "y")()


@pytest.mark.exhaustive
def test_csv_of_200_000_rows(text: Callable[..., str]) -> None:
    n = 200_000
    lines = (f"{i},{i / 8},note {i % 5},{i % 3},c{i % 1000},{'test' if i % 10 == 0 else 'train'}\n" for i in range(n))
    path = text("i,eighth,note,y,client,split\n" + "".join(lines))
    with pytest.warns(CoterieWarning, match="column 'i' has another whole number in every row"):
        data = CSV(path, "y")()
    assert data.x.shape == (n, 3)
    assert torch.equal(data.x[:, 2], torch.arange(n) % 5)  # the codes of the notes
    assert torch.equal(data.x[:, 1], torch.arange(n) / 8)
    assert torch.equal(data.y, torch.arange(n) % 3)
    assert owned(data)[123_456] == "c456"
    assert data.official is not None
    assert int(data.official.sum()) == n // 10


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0, -float("inf")], "y": [0, 1]}, r"column 'a', row 1 \(the first is 0\): '-inf' is no number"),
        ({"a": [1.0, float("inf")], "y": [0, 1]}, r"column 'a', row 1 .*: 'inf' is no number"),
        ({"a": [1, 2], "y": [0, None]}, r"column 'y', row 1 .*: the value is missing"),
        ({"a": [1, 2], "y": [[0, 2], [1, 0]]}, r"column 'y' has shape \(2, 2\); labels are one whole number"),
        ({"a": [1, 2], "y": [b"0", b"1"]}, r"column 'y' has values of \|S1"),
        ({"a": [1, 2], "y": [0, 1], "client": ["a", None]}, r"column 'client', row 1 .*: the value is missing"),
        ({"a": [1, 2], "y": [0, 1], "client": [1.0, 2.0]}, r"column 'client', row 0 .*: 1.0 is no name of a client"),
        ({"a": [1, 2], "y": [0, 1], "split": [None, "test"]}, r"column 'split', row 0 .*: the value is missing"),
        ({"a": ["q", "r"], "y": [0, 1]}, r"no feature columns"),
    ],
)
def test_parquet_refused(arrow: Callable[..., str], columns: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        Parquet(arrow(columns), "y", missing="refuse")()


def test_parquet_without_rows_is_refused(arrow: Callable[..., str]) -> None:
    import pyarrow as pa

    with raises("data-empty", match=r"has no rows"):
        Parquet(arrow({"a": pa.array([], pa.int64()), "y": pa.array([], pa.int64())}), "y")()


def test_parquet_named_text_column_is_refused(arrow: Callable[..., str]) -> None:
    with raises("data-cell", match=r"column 'town', row 0 .*: 'Rom' is no number"):
        roles(Parquet, arrow(COLUMNS), x=("age", "town"))()


def test_parquet_that_is_none(text: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")
    path = text(PLAIN)
    with raises("data-file-damaged", match=r"cannot be read as a parquet file"):
        Parquet(path, "ill")()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises("extra-missing", match=r"pip install 'coterie\[parquet\]'"):
        Parquet(path, "ill")()


def test_a_column_that_is_constant_but_for_rounding_is_not_blown_up(text: Callable[..., str]) -> None:
    data = CSV(text("a,y\n" + "0.1,0\n" * 1001), "y")()
    assert scaled(data) == [[0.0]] * 1001


def test_standardised_for_every_sample_shape(text: Callable[..., str]) -> None:
    data = CSV(text("a,b,y\n1,10,0\n3,30,1\n"), "y")()
    made = federate(replace(data, client=np.zeros(2, dtype=np.int64)), Natural(test=0.0))
    scale = made.domains[0].scale
    assert isinstance(scale, Scale)
    assert torch.as_tensor(scale.mean).tolist() == [2, 20]
    assert torch.as_tensor(scale.std).tolist() == [1, 10]
    assert len(scale.bytes()) > 0


def test_checksums_whatever_the_strides_in_the_file(npz: Callable[..., str]) -> None:
    plain = NPZ(npz(x=np.arange(6.0).reshape(3, 2), y=np.arange(6.0).reshape(3, 2)))()
    turned = NPZ(
        npz(x=np.arange(6.0).reshape(3, 2, order="C").copy(order="F"), y=np.arange(6.0).reshape(3, 2).copy("F"))
    )()
    assert plain.x.stride() == turned.x.stride() == (2, 1)
    assert torch.equal(plain.y, turned.y)
    for x in (
        np.arange(3, dtype=np.float32),
        np.zeros((3, 4, 1, 1), dtype=np.uint8),
        np.zeros((3, 1, 1), dtype=np.uint8),
    ):
        data = NPZ(npz(x=x, y=np.ones(3)), channels="last" if x.ndim == 4 else None)()
        federation = Federation((data.domain,), Ragged.of([[0, 1, 2]]), Ragged.of([[]]), data.kind, data.classes)
        assert federation.checksum() > 0


def test_features_are_standardised_by_the_training_samples_alone(tmp_path: Path) -> None:
    """Where a table has no split column, the samples held out for testing must not leak into the scale."""
    rng = np.random.default_rng(0)
    rows = [f"{owner},{rng.normal(5, 3):.4f},{rng.integers(0, 2)}" for owner in "abc" for _ in range(10)]
    (tmp_path / "t.csv").write_text("\n".join(["client,x1,y", *rows]))
    made = federate(CSV(path=str(tmp_path / "t.csv"), y="y"))
    x = torch.cat([made.samples(client, "train")[0] for client in range(3)])
    assert float(x.mean()) == pytest.approx(0, abs=1e-6)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert len(x) == 24


# ----------------------------------------------------------------------------------------------------- groups


REGIONS = "shop,region,a,y\nb,south,1,0\na,north,2,1\nb,,3,1\na,north,4,0\nc,,5,0\nc,,6,1\n"


def test_a_column_of_groups_is_no_feature_and_says_where_clients_are(text: Callable[..., str]) -> None:
    made = federate(CSV(text(REGIONS), y="y", client="shop", group="region"))
    assert made.names == ("a", "b", "c")
    assert made.groups == ("north", "south", None)
    assert made.features == ("a",)
    groups = made.roster.groups
    assert groups is not None
    assert (groups.ids.tolist(), groups.values.tolist()) == ([0, 1], [0, 1])
    assert "2 groups given" in made.describe()
    assert made.take([2, 1]).groups == (None, "south")


def test_a_column_of_groups_is_only_used_if_it_is_named(text: Callable[..., str]) -> None:
    made = federate(CSV(text(REGIONS.replace("region", "group")), y="y", client="shop", categories="none"))
    assert made.groups is None
    assert made.left_out == ("group",)


def test_groups_of_a_parquet_file_may_be_numbers(arrow: Callable[..., str]) -> None:
    columns = {"a": [0.5, 1.5, 2.5, 3.5], "y": [0, 1, 0, 1], "client": [1, 1, 2, 2], "site": [7, 7, None, 5]}
    assert federate(Parquet(arrow(columns), y="y", group="site")).groups == ("7", "5")


@pytest.mark.parametrize(
    ("content", "options", "message", "code"),
    [
        (REGIONS.replace("b,,3", "b,north,3"), {"client": "shop"}, "line 4: client 'b' is in 'south'", "data-cell"),
        (REGIONS, {}, "name their column too", "config-missing-key"),
        (REGIONS, {"client": "region"}, "asked to be two things", "data-column-invalid"),
    ],
)
def test_groups_that_make_no_sense_are_refused(
    text: Callable[..., str], content: str, options: dict[str, Any], message: str, code: str
) -> None:
    with pytest.raises(CoterieError, match=message) as error:
        CSV(text(content), y="y", group="region", **options)()
    assert error.value.code == code


def test_groups_of_clients_that_a_partition_replaces_are_refused(text: Callable[..., str]) -> None:
    table = CSV(text(REGIONS), y="y", client="shop", group="region")
    with pytest.raises(CoterieError, match="this partition makes others") as error:
        federate(table, IID(clients=2))
    assert error.value.code == "config-conflict"
