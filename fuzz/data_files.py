"""Targets: the files of a user's data, and those of public data sets."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from target import Target

from coterie.data.images import ImageFolder
from coterie.data.npz import NPZ
from coterie.data.sets.har import UCIHAR
from coterie.data.sets.images import _read_batches as read_cifar
from coterie.data.sets.images import read_idx, read_npz
from coterie.data.sets.leaf import FEMNIST, Sent140
from coterie.data.table import CSV, Parquet, open_rows

LARGEST = 1 << 24  # bytes that an input may inflate to


@cache
def place() -> Path:
    """A directory of this process, in memory where there is one."""
    shared = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(prefix="coterie-fuzz-", dir=shared if shared.is_dir() else None)
    _kept.append(made)
    return Path(made.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of files as a reader of bytes."""

    def with_file(data: bytes) -> object:
        file = place() / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return read(file)

    return with_file


def saved(**arrays: Any) -> bytes:
    """An npz file."""
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def array(values: Any) -> bytes:
    """An npy file."""
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def _npz() -> list[bytes]:
    x, client = np.ones((6, 3), np.float32), np.array(list("aabbcc"))
    images, split = np.zeros((6, 4, 4, 3), np.uint8), np.array(["train", "test"] * 3)
    packed = io.BytesIO()
    np.savez_compressed(packed, x=x, y=np.arange(6) % 2)
    return [saved(x=x, y=np.arange(6), client=client), saved(x=images, y=client, split=split), packed.getvalue()]


def _npz_member(data: bytes) -> object:
    file = place() / "member.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", data)
        archive.writestr("y.npy", array(np.arange(6) % 2))
    return NPZ(str(file), largest=LARGEST)()


def _members() -> list[bytes]:
    floats = np.ones((6, 3), np.float32)
    return [
        array(floats),
        array(np.asfortranarray(floats)),
        array(np.zeros((6, 2, 2), np.uint8)),
        array(list("abcdef")),
    ]


def _tables() -> list[bytes]:
    return [
        b"a,b,y,client\n1,2,u,p\n3,4,v,q\n5,6,u,p\n",
        b"a;y;split\n1.5;0;train\n;1;test\n2,5;0;val\n",
        b'\xef\xbb\xbfwhen\tcolour\ty\n2020-01-02\t"red\n"\t1.5\n2020-02-30\tblue\t2.5\n',
    ]


def _parquet() -> list[bytes]:
    import pyarrow as arrow
    from pyarrow import parquet

    columns = {"a": [1.0, None, 3.0], "b": [1, 2, 3], "y": ["u", "v", "u"], "client": ["p", "q", "p"]}
    made = []
    for compression in ("NONE", "SNAPPY"):
        out = io.BytesIO()
        parquet.write_table(arrow.table(columns), out, compression=compression)
        made.append(out.getvalue())
    return made


def _pictures() -> list[bytes]:
    made = []
    for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP"):
        out = io.BytesIO()
        Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(out, kind)
        made.append(out.getvalue())
    return made


def _read_picture(file: Path) -> object:
    return ImageFolder(str(file.parent.parent))()


def _leaf() -> list[bytes]:
    def table(x: Any, y: Any) -> bytes:
        return json.dumps({"users": ["u"], "num_samples": [1], "user_data": {"u": {"x": x, "y": y}}}).encode()

    return [table([["1", "d", "q", "n", "a good day"]], [4]), table([[0.0, 1.0] * 392], [3]), table(["text"], ["0"])]


def _read_leaf(file: Path) -> object:
    path = str(file.parent.parent)
    try:
        FEMNIST(path=path)()
    finally:
        Sent140(path=path)()
    return None


def _read_rows(file: Path) -> object:
    rows = open_rows(file)
    return [len(chunk) for chunk in rows.chunks(rows.names, ())]


NPY = (b"\x93NUMPY\x01\x00", b"'|O'", b"'<f8'", b"'|S0'", b"(1000000000000,)", b"(-1,)", b"'shape': ", b"True")
LEAF = (b'"users"', b'"num_samples"', b'"user_data"', b'"x"', b'"y"', b"Infinity", b"[[[[")
HAR = saved(x=np.ones((3, 9, 128), np.float32), y=np.array([0, 1, 5]), subject=np.array([1, 1, 2]))
IDX = bytes((0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2)) + bytes(8)

TARGETS = (
    Target("npz", _npz, in_file("a.npz", lambda f: NPZ(str(f), largest=LARGEST)()), NPY),
    Target("npz-member", _members, _npz_member, NPY),
    Target("medmnist", _npz, in_file("b.npz", lambda f: read_npz(f, ("x", "y"))), NPY),
    Target("har", lambda: [HAR], in_file("h.npz", lambda f: UCIHAR(path=str(f))()), NPY),
    Target("csv", _tables, in_file("a.csv", lambda f: CSV(str(f), y="y")()), (b"y", b"client", b"split", b"train")),
    Target("parquet", _parquet, in_file("a.parquet", lambda f: Parquet(str(f), y="y", largest=LARGEST)()), (b"PAR1",)),
    Target("images", _pictures, in_file("images/cat/a.png", _read_picture), (b"IHDR", b"IDAT", b"acTL")),
    Target("idx", lambda: [IDX], in_file("a.idx", lambda f: read_idx(f, 3))),
    Target("cifar", lambda: [bytes(3073 * 2)], in_file("batch.bin", lambda path: read_cifar(path, 10))),
    Target("rows-csv", _tables, in_file("r.csv", _read_rows)),
    Target("rows-npz", _npz, in_file("r.npz", _read_rows), NPY),
    Target("rows-parquet", _parquet, in_file("r.parquet", _read_rows), (b"PAR1",)),
    Target("leaf", _leaf, in_file("leaf/all_data/a.json", _read_leaf), LEAF),
)
