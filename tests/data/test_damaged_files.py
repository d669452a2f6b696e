"""Whatever a file holds, a loader gives data or the library's error: no traceback, and not all of the memory."""

from __future__ import annotations

import contextlib
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import raises
from coterie.core.errors import CoterieError
from coterie.data import images
from coterie.data.images import ImageFolder
from coterie.data.npz import NPZ
from coterie.data.sets.har import UCIHAR
from coterie.data.sets.images import CIFAR10, MNIST, read_idx, read_npz
from coterie.data.sets.images import _read_batches as read_cifar
from coterie.data.sets.leaf import FEMNIST, Sent140
from coterie.data.table import CSV, Parquet, open_rows, reading

TRIES = 150


def npz(path: Path) -> Path:
    np.savez(path / "a.npz", x=np.ones((6, 3), np.float32), y=np.arange(6), client=np.array(list("aabbcc")))
    return path / "a.npz"


def parquet(path: Path) -> Path:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"a": [1.0, 2.0, 3.0], "b": [1, 2, 3], "y": ["u", "v", "u"], "client": ["p", "q", "p"]})
    writer.write_table(table, path / "a.parquet")
    return path / "a.parquet"


def csv(path: Path) -> Path:
    (path / "a.csv").write_text("a,b,y,client\n1,2,u,p\n3,4,v,q\n5,6,u,p\n")
    return path / "a.csv"


def image(path: Path) -> Path:
    for place in (path / "images" / "cat", path / "images" / "dog"):
        place.mkdir(parents=True)
        Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(place / "a.png")
    return path / "images" / "cat" / "a.png"


def idx(path: Path) -> Path:
    (path / "idx").write_bytes(bytes((0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2)) + bytes(8))
    return path / "idx"


def cifar(path: Path) -> Path:
    (path / "batch.bin").write_bytes(bytes(3073 * 2))
    return path / "batch.bin"


def leaf(path: Path, user: Any = None, n: Any = 1) -> Path:
    (path / "leaf" / "all_data").mkdir(parents=True, exist_ok=True)
    user = user or {"x": [["1", "d", "q", "n", "a good day"]], "y": [1]}
    table = {"users": ["u"], "num_samples": [n], "user_data": {"u": user}}
    (path / "leaf" / "all_data" / "a.json").write_text(json.dumps(table))
    return path / "leaf" / "all_data" / "a.json"


LOADERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "npz": (npz, lambda file: NPZ(str(file))()),
    "medmnist": (npz, lambda file: read_npz(file, ("x", "y"))),
    "parquet": (parquet, lambda file: Parquet(str(file), y="y")()),
    "csv": (csv, lambda file: CSV(str(file), y="y")()),
    "images": (image, lambda file: ImageFolder(str(file.parent.parent))()),
    "idx": (idx, lambda file: read_idx(file, 3)),
    "cifar": (cifar, lambda path: read_cifar(path, 10)),
    "leaf": (leaf, lambda file: Sent140(path=str(file.parent.parent))()),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.filterwarnings("ignore")  # of damaged images and zips their readers warn
def test_a_file_with_bytes_changed(kind: str, tmp_path: Path) -> None:
    make, load = LOADERS[kind]
    file, draw = make(tmp_path), random.Random(0)
    whole = file.read_bytes()
    load(file)
    for _ in range(TRIES):
        changed = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        if draw.random() < 0.2:
            del changed[draw.randrange(len(changed)) :]
        file.write_bytes(bytes(changed))
        with contextlib.suppress(CoterieError):
            load(file)


def member(header: bytes, data: bytes = b"") -> bytes:
    text = header + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (10**400,)}",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': ('a',)}",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (2,)}",
        b"{'descr': '|S0', 'fortran_order': False, 'shape': (1000000000000,)}",
        b"{'descr': 7, 'fortran_order': False, 'shape': ()}",
        b"{'descr': [('a'",
        b"(((((",
        b"\x00",
        b"'",
        b"[" * 5000,
        b"{'descr': '<f8'}",
    ],
)
def test_headers_of_arrays_that_cannot_be(header: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", member(header))
        good = io.BytesIO()
        np.save(good, np.arange(2))
        archive.writestr("y.npy", good.getvalue())
    with raises("data-file-damaged", match=r"a.npz"):
        NPZ(str(tmp_path / "a.npz"))()
    with raises("data-file-damaged"):
        read_npz(tmp_path / "a.npz", ("x", "y"))


def test_a_file_that_inflates_beyond_the_bound_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "a.npz")
    np.savez_compressed(file, x=np.zeros((1000, 100), np.float32), y=np.arange(1000) % 2)
    monkeypatch.setattr(np.lib.format, "read_array", None)  # nothing is read
    with raises("data-file-too-large", match=r"a.npz: would take 408,\d+ bytes of memory, data.largest allows 100,000"):
        NPZ(file, largest=100_000)()
    monkeypatch.undo()
    assert len(NPZ(file, largest=500_000)().y) == 1000
    np.savez(file, x=np.zeros((1000, 100), np.float32), y=np.arange(1000) % 2)
    assert len(NPZ(file, largest=100)().y) == 1000  # as large on the disk as in memory


def test_a_parquet_file_of_one_value_is_not_all_memory(tmp_path: Path) -> None:
    arrow, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer.write_table(arrow.table({"a": np.zeros(50_000), "y": np.zeros(50_000)}), tmp_path / "a.parquet")
    file = str(tmp_path / "a.parquet")
    with raises("data-file-too-large"):
        Parquet(file, y="y", largest=1000)()
    assert len(Parquet(file, y="y")().y) == 50_000


@pytest.mark.parametrize(
    ("user", "n"),
    [
        ({"x": [[0.0] * 784], "y": [1]}, float("inf")),
        ({"x": [[float("inf")] * 784], "y": [1]}, 1),
        ({"x": [[10**400] * 784], "y": [1]}, 1),
        ({"x": [[0.0] * 784], "y": [[1, [2]]]}, 1),
        ({"x": [[0.0] * 784, [0.0]], "y": [[1], [1, 2]]}, 2),
        ({"x": [[0.0] * 784], "y": [10**400]}, 1),
    ],
)
@pytest.mark.parametrize("kind", [FEMNIST, Sent140])
def test_json_that_is_no_data(kind: Any, user: Any, n: Any, tmp_path: Path) -> None:
    file = leaf(tmp_path, user, n)
    with pytest.raises(CoterieError):
        kind(path=str(file.parent.parent))()


def test_json_that_is_too_deep(tmp_path: Path) -> None:
    file = leaf(tmp_path)
    file.write_text("[" * 100_000)
    with raises("data-file-damaged", match=r"a.json is not json"):
        FEMNIST(path=str(file.parent.parent))()


def test_whatever_a_parser_raises_becomes_words() -> None:
    with raises("data-file-too-large", match=r"f.npz: is larger than the memory"), reading("f.npz"):
        raise MemoryError
    with raises("data-file-damaged", match=r"f.npz: cannot be read.*\(KeyError: 'a'\)"), reading("f.npz"):
        raise KeyError("a")
    with raises("unspecified"), reading("f.npz"):
        raise CoterieError("mine")


def test_an_image_that_claims_more_than_it_holds_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = image(tmp_path)
    Image.new("1", (9000, 9000)).save(file)  # 10 kilobytes, 243 million bytes of pixels
    monkeypatch.setattr(images, "pixels", None)
    with raises("data-file-too-large", match=r"a.png claims 9,000 x 9,000 pixels in"):
        ImageFolder(str(file.parent.parent))()


def test_images_that_are_too_many_for_the_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = image(tmp_path)
    monkeypatch.setattr(images, "LARGEST", 100)
    monkeypatch.setattr(images, "PLAUSIBLE", 0.1)
    with raises(
        "data-file-too-large", match=r"2 images would take 384 bytes of memory, their files .* size: \[64, 64\]"
    ):
        ImageFolder(str(file.parent.parent))()


@pytest.mark.parametrize("path", ["/dev/zero", "~nobody-here/a", "a" * 300, "a\0b"])
def test_paths_that_are_no_files(path: str) -> None:
    for kind in (NPZ, ImageFolder):
        with pytest.raises(CoterieError):
            kind(path)()
    for table in (CSV, Parquet):
        with pytest.raises(CoterieError):
            table(path, y="y")()
    for known in (MNIST, CIFAR10, FEMNIST, UCIHAR):
        with pytest.raises(CoterieError):
            known(path=path)()


def test_rows_of_an_array_whose_header_promises_more(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", member(b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1000000000000)}"))
    rows = open_rows(tmp_path / "a.npz")
    with raises("data-file-damaged", match="promises 16,000,000,000,000 bytes, the file has 0"):
        list(rows.chunks(["x"], ()))
