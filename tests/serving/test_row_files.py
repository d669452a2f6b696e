"""New rows in chunks: the same of every format, never more than a chunk at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import raises
from coterie.data import table as table_module
from coterie.data.table import open_rows
from coterie.serving.spool import Spool
from coterie.serving.table_files import open_table


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "CHUNK_ROWS", 3)
    monkeypatch.setattr(table_module, "CHUNK_BYTES", 3 * 2 * 4)


def test_a_csv_file_and_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "new.csv"
    file.write_text('a;b;who\n1;2;x\n\n3;4;"y\nz"\n5;6;x\n7;8;x\n')
    rows = open_rows(file)
    assert rows.names == ("a", "b", "who")
    chunks = list(rows.chunks(["b"], ["who"]))
    assert [len(chunk) for chunk in chunks] == [3, 1]
    assert [chunk.first for chunk in chunks] == [0, 3]
    assert chunks[0].columns["b"].tolist() == ["2", "4", "6"]
    assert chunks[0].columns["who"].tolist() == ["x", "y\nz", "x"]
    assert [chunks[0].row(i) for i in range(3)] == ["line 2", "line 5", "line 6"]
    assert chunks[1].row(0) == "line 7"


def test_a_parquet_file(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "new.parquet"
    parquet.write_table(arrow.table({"a": [1, 2, None, 4], "who": [7, 7, 8, 8]}), file)
    chunks = list(open_rows(file).chunks(["a"], ["who"]))
    assert [len(chunk) for chunk in chunks] == [3, 1]
    assert chunks[0].columns["a"][:2].tolist() == [1.0, 2.0]
    assert np.isnan(chunks[0].columns["a"][2])
    assert chunks[0].columns["who"].tolist() == [7, 7, 8]
    assert chunks[1].row(0) == "row 3 (the first is 0)"


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file(tmp_path: Path, save: object, order: str) -> None:
    x = np.asarray(np.arange(14, dtype=np.float32).reshape(7, 2), order=order)  # type: ignore[call-overload]
    file = tmp_path / "new.npz"
    save(file, x=x, client=np.array(["a", "b"] * 3 + ["c"]))  # type: ignore[operator]
    chunks = list(open_rows(file).chunks(["x"], ["client"]))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]
    found = [chunk.x for chunk in chunks if chunk.x is not None]
    assert np.array_equal(np.concatenate(found), x)
    assert chunks[2].columns["client"].tolist() == ["c"]


def test_what_is_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "new.npz").write_text("no")
    (tmp_path / "new.xlsx").write_text("no")
    np.savez(tmp_path / "uneven.npz", x=np.zeros((3, 2)), client=np.zeros(2))
    with raises("data-file-format", match="npz"):
        open_rows(tmp_path / "new.npz")
    with raises("data-file-format", match=r"\.csv"):
        open_rows(tmp_path / "new.xlsx")
    with raises("data-file-missing"):
        open_rows(tmp_path / "none.csv")
    with raises("data-shape", match="3 samples"):
        list(open_rows(tmp_path / "uneven.npz").chunks(["x"], ["client"]))


def test_rows_come_back_by_client() -> None:
    """Clients 0, 1 and 2 with 3, 1 and 2 rows, mixed."""
    client = np.array([2, 0, 0, 1, 2, 0])
    x = torch.arange(12.0).reshape(6, 2)
    spool = Spool([3, 1, 2], x, 1)
    for part in (slice(0, 2), slice(2, 6)):
        rows = np.arange(6)[part]
        spool.add(client[part], rows, rows % 2 == 1, rows[:, None].astype(np.float64) * 10, x[part])
    for number in range(3):
        mine = spool.client(number)
        wanted = np.flatnonzero(client == number)
        assert mine.row.tolist() == wanted.tolist()
        assert mine.y[:, 0].tolist() == (wanted * 10.0).tolist()
        assert mine.test.tolist() == (wanted % 2 == 1).tolist()
        assert torch.equal(mine.x, x[torch.from_numpy(wanted)])
    spool.close()


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_table_appears_whole_or_not_at_all(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    file = tmp_path / "deep" / name
    with pytest.raises(KeyError), open_table(file, {"a": int, "b": str}) as table:
        table.add({"a": [1]})
    assert not list(tmp_path.rglob("out*"))
    with open_table(file, {"a": int, "b": str}) as table:
        table.add({"a": [1, None], "b": ["x", "y"]})
        assert not file.exists()
    assert [one.name for one in file.parent.iterdir()] == [name]


def test_where_a_table_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises("disk-write"), open_table(tmp_path / "file" / "out.csv", {"a": int}):
        pass
    with raises("option-invalid"), open_table(tmp_path / "out.txt", {"a": int}):
        pass
