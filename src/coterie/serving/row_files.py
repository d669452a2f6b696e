"""New rows from a csv, parquet or npz file, or from a table in memory, a chunk at a time.

No file is ever held whole: a chunk has at most `ROWS` rows, or about `BYTES` of an npz file's inputs.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieError
from coterie.data.frames import column_names
from coterie.data.readers.checks import LARGEST, array_header, check_inflated, check_promise, read_member, reading
from coterie.data.readers.columns import file_at
from coterie.data.readers.tables import is_number, opened_csv

ROWS = 5_000  # of a table that are held at a time
BYTES = 1 << 24  # of the inputs of an npz file


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rows: columns by name, or an array of inputs and the other arrays by name."""

    first: int  # the number of the first row
    columns: dict[str, NDArray[Any]]
    row: Callable[[int], str]  # what errors call a row of this chunk
    x: NDArray[Any] | None = None  # of an npz file

    def __len__(self) -> int:
        return len(self.x) if self.x is not None else len(next(iter(self.columns.values()), ()))


class Rows(Protocol):
    """Rows that can be read from the start as often as needed."""

    @property
    def title(self) -> str:
        """What errors call it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its columns, or arrays."""

    def chunks(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Chunk]:
        """These columns, in order. others: whose values are taken as they are (names, labels)."""


@dataclass(frozen=True, eq=False)
class CsvRows:
    """A csv file."""

    path: Path
    title: str
    names: tuple[str, ...]

    @staticmethod
    def open(path: Path) -> CsvRows:
        with reading(path), opened_csv(path, str(path)) as (header, _):
            return CsvRows(path, str(path), tuple(header))

    def chunks(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Chunk]:
        """At most `ROWS` lines at a time."""
        wanted = list(dict.fromkeys([*features, *others]))
        with reading(self.path), opened_csv(self.path, self.title) as (header, numbered):
            places = {name: header.index(name) for name in wanted}
            first = 0
            while rows := list(islice(numbered, ROWS)):
                lines = [line for line, _ in rows]
                cells = {name: _objects([row[i].strip() for _, row in rows]) for name, i in places.items()}
                yield Chunk(first, cells, lambda row, lines=lines: f"line {lines[row]}")  # type: ignore[misc]
                first += len(rows)


@dataclass(frozen=True, eq=False)
class ParquetRows:
    """A parquet file."""

    path: Path
    title: str
    names: tuple[str, ...]

    @staticmethod
    def open(path: Path) -> ParquetRows:
        with reading(path), _parquet().ParquetFile(path) as opened:
            return ParquetRows(path, str(path), tuple(opened.schema_arrow.names))

    def chunks(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Chunk]:
        """At most `ROWS` rows at a time."""
        import pyarrow as arrow

        wanted, first = list(dict.fromkeys([*features, *others])), 0
        with reading(self.path), _parquet().ParquetFile(self.path) as opened:
            for batch in opened.iter_batches(ROWS, columns=wanted):
                columns: dict[str, NDArray[Any]] = {}
                for name in wanted:
                    column = batch.column(name)
                    if name not in others and is_number(arrow, column.type):
                        columns[name] = column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
                    else:
                        columns[name] = _objects(column.to_pylist())
                yield Chunk(first, columns, _numbered("row {} (the first is 0)", first))
                first += batch.num_rows


@dataclass(frozen=True, eq=False)
class NpzRows:
    """Arrays of one length in an npz file; `x` has the inputs."""

    path: Path
    title: str
    names: tuple[str, ...]
    x: str

    @staticmethod
    def open(path: Path, x: str) -> NpzRows:
        try:
            with zipfile.ZipFile(path) as archive:
                names = tuple(name.removesuffix(".npy") for name in archive.namelist())
        except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError):  # the latter two: of a damaged directory
            raise CoterieError(
                f"{path}: is not an npz file; numpy.savez(path, x=..., client=...) writes one", code="data-file-format"
            ) from None
        if x not in names:
            raise CoterieError(f"{path}: has no array '{x}' of inputs: {', '.join(names)}", code="data-column-unknown")
        return NpzRows(path, str(path), names, x)

    def chunks(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Chunk]:
        """About `BYTES` of inputs at a time; without features only the other arrays."""
        with reading(self.path), zipfile.ZipFile(self.path) as archive, ExitStack() as stack:
            named = {name: _Member.open(self.path, archive, name, stack) for name in others}
            inputs = _Member.open(self.path, archive, self.x, stack) if features else None
            every = named | ({} if inputs is None else {self.x: inputs})
            many = next(iter(every.values())).length
            size = ROWS if inputs is None else max(1, BYTES // max(inputs.width, 1))
            for name, member in every.items():
                if member.length != many:
                    raise CoterieError(
                        f"{self.path}: array '{name}' has {member.length} samples, '{next(iter(every))}' has {many}",
                        code="data-shape",
                    )
            for first in range(0, many, size):
                count = min(size, many - first)
                columns = {name: member.read(first, count) for name, member in named.items()}
                x = None if inputs is None else inputs.read(first, count)
                yield Chunk(first, columns, _numbered("sample {}", first), x)


@dataclass(frozen=True, eq=False)
class TableRows:
    """A table in memory: a DataFrame, a dict of columns."""

    table: Any
    names: tuple[str, ...]
    title: str = "the table"

    def chunks(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Chunk]:
        """At most `ROWS` rows at a time."""
        columns = {name: np.asarray(self.table[name]) for name in dict.fromkeys([*features, *others])}
        if len({len(column) for column in columns.values()}) > 1:
            raise CoterieError(f"{self.title}: its columns differ in length", code="data-column-invalid")
        for first in range(0, len(next(iter(columns.values()), ())), ROWS):
            part = {name: column[first : first + ROWS] for name, column in columns.items()}
            yield Chunk(first, part, _numbered("row {} (the first is 0)", first))


def open_rows(data: Any, x: str = "x") -> Rows:
    """A file by its ending, or a table in memory. x: the array of an npz file that has the inputs."""
    if isinstance(data, str | Path):
        path = file_at(str(data))
        ending = path.suffix.lower()
        if ending in (".csv", ".tsv", ".txt", ".data"):
            return CsvRows.open(path)
        if ending in (".parquet", ".pq"):
            return ParquetRows.open(path)
        if ending == ".npz":
            return NpzRows.open(path, x)
        raise CoterieError(f"{path}: give a .csv, a .parquet or an .npz file", code="data-file-format")
    names = column_names(data)
    if names is None:
        raise CoterieError(
            f"expected a file or a table with named columns, got a {type(data).__name__}", code="data-type"
        )
    return TableRows(data, names)


@dataclass
class _Member:
    """An array of an npz file, read from its start to its end."""

    stream: IO[bytes] | None
    whole: NDArray[Any] | None  # where it cannot be read row by row (Fortran order)
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @staticmethod
    def open(path: Path, archive: zipfile.ZipFile, name: str, stack: ExitStack) -> _Member:
        entry = archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)
        stream = stack.enter_context(archive.open(entry))
        shape, dtype, head, by_columns = array_header(stream)
        if dtype.hasobject or not shape:
            raise CoterieError(
                f"{path}: array '{name}' has Python objects or is one number; store numbers or strings, one per sample",
                code="data-file-format",
            )
        check_promise(shape, dtype, entry.file_size - head)
        check_inflated(path, math.prod(shape[1:]) * dtype.itemsize, LARGEST)  # a row is held whole
        whole = read_member(path, archive, name, LARGEST) if by_columns else None
        return _Member(stream, whole, shape, dtype)

    @property
    def length(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, first: int, count: int) -> NDArray[Any]:
        if self.whole is not None:
            found = self.whole[first : first + count]
        else:
            assert self.stream is not None
            content = self.stream.read(count * self.width)
            found = np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])
        return np.char.decode(found, "utf-8") if self.dtype.kind == "S" else found


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _numbered(text: str, first: int) -> Callable[[int], str]:
    return lambda row: text.format(first + row)


def _parquet() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise CoterieError(
            "a parquet file needs pyarrow; pip install 'coterie[parquet]'", code="extra-missing"
        ) from None
    return parquet
