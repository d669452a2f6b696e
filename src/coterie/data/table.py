"""Tables of one's own: csv, parquet and tables in memory, read to train on or, a chunk at a time, to predict for.

Files are not trusted: sizes are checked before memory is allocated, and what a parser raises is told in words. New
rows are never held whole: a chunk has at most `CHUNK_ROWS` rows, or about `CHUNK_BYTES` of an npz file's inputs.
"""

from __future__ import annotations

import csv
import math
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass as plain
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar, Literal, NoReturn, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning, suggest
from coterie.core.files import user_path
from coterie.core.settings import STRICT, Kind, dataclass, explained_call
from coterie.core.text import counted
from coterie.data.cells import as_cell, category, column_names, is_hole, number_in, one_column, same_length, time_in
from coterie.data.columns import (
    Categories,
    ChosenColumns,
    ColumnReader,
    ColumnRules,
    Missing,
    Names,
    NotAvailable,
    choose,
    only_prose,
)
from coterie.data.dataset import Dataset
from coterie.data.scale import Scale

LARGEST = 1 << 30  # bytes that a file may inflate to, unless it is itself larger or the configuration says otherwise


FEW_CLASSES = 20  # different whole numbers: up to here they are taken for classes without a word

PER_CLASS = 50  # samples; fewer of each of many classes are hard to learn, and usual for amounts


def warn_of_amounts(y: Tensor, where: str, remedy: str) -> None:
    """Whole numbers that look like amounts (scores, counts, years) are read as classes, but not in silence."""
    found = y.unique()
    many, low, high = len(found), int(found[0]), int(found[-1])
    sparse = many > FEW_CLASSES and len(y) < PER_CLASS * many
    gaps = many > FEW_CLASSES // 2 and high + 1 > 2 * many
    if sparse or gaps:
        warnings.warn(
            f"data: {where}: {many} different whole numbers from {low} to {high} are taken for {high + 1} classes "
            f"(accuracy). {remedy}",
            CoterieWarning,
            stacklevel=2,
        )


def warn_of_no_zero(y: Tensor, where: str, remedy: str) -> None:
    """Labels 1..C, all of them there, are C + 1 classes of which nobody has the first."""
    found = y.unique()
    if len(found) > 1 and int(found[0]) == 1 and int(found[-1]) == len(found):
        warnings.warn(
            f"data: {where}: the labels go from 1 to {len(found)} and are taken for {len(found) + 1} classes, of which "
            f"class 0 has no samples. Do yours start at 1? Subtract 1. {remedy}",
            CoterieWarning,
            stacklevel=2,
        )


def refuse_vectors(y: Tensor, where: str, task: Kind | None) -> None:
    """One-hot labels and probabilities are labels in a form that is not taken."""
    if task == "regression" or y.ndim != 2 or y.shape[1] < 2 or not len(y):
        return
    values = y.double()
    if not bool((values >= 0).all()) or not bool(torch.isclose(values.sum(1), values.new_ones(1), atol=1e-3).all()):
        return
    one_hot = bool(((values == 0) | (values == 1)).all())
    what = "one-hot labels" if one_hot else "probabilities of classes (outputs of a softmax)"
    raise CoterieError(
        f"data: {where}: these are {what}; give one label per sample, y.argmax(1), or write task='regression' if each "
        "column is a target of its own",
        code="data-labels",
    )


def as_task(y: Tensor, task: Kind | None, where: str) -> Tensor:
    """The targets in the form that the task needs."""
    if task == "regression" and not y.is_floating_point():
        return y.to(torch.get_default_dtype())
    if task == "classification" and y.is_floating_point():
        odd = torch.nonzero((y % 1 != 0).reshape(len(y), -1).any(1))
        if len(odd):
            value = float(y[int(odd[0])].reshape(-1)[0])
            raise CoterieError(
                f"data: {where}: {value:g} is not a class; write whole numbers, or task='regression'",
                code="data-labels",
            )
        return y.long()
    return y


@contextmanager
def reading(file: Path | str) -> Iterator[None]:
    """Of a damaged file a parser may raise anything: it becomes the library's error, with the file."""
    try:
        yield
    except (CoterieError, CoterieWarning):  # a warning is raised where a user turned warnings into errors
        raise
    except MemoryError:
        raise CoterieError(f"{file}: is larger than the memory that is left", code="data-file-too-large") from None
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise CoterieError(
            f"{file}: cannot be read, it is damaged or of another format ({type(error).__name__}: {why})",
            code="data-file-damaged",
        ) from error


def check_inflated(file: Path, size: int, largest: int, key: str = "data.largest") -> None:
    """Refuse a file that would take far more memory than it has bytes. Called before anything is allocated."""
    if size > max(largest, file.stat().st_size):
        raise CoterieError(
            f"{file}: would take {size:,} bytes of memory, {key} allows {largest:,}; raise it if so meant",
            code="data-file-too-large",
        )


def read_member(file: Path, archive: zipfile.ZipFile, name: str, largest: int) -> NDArray[Any]:
    """An array of an npz file, once its header promises no more than the member holds; nothing is executed."""
    entry = archive.getinfo(f"{name}.npy" if f"{name}.npy" in archive.namelist() else name)
    check_inflated(file, entry.file_size, largest)
    with archive.open(entry) as stream:
        shape, dtype, head, _ = array_header(stream)
        if dtype.hasobject or not dtype.itemsize:
            raise CoterieError("Python objects are not read; store numbers or strings", code="data-file-format")
        check_promise(shape, dtype, entry.file_size - head)
    with archive.open(entry) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def check_promise(shape: tuple[int, ...], dtype: np.dtype[Any], there: int) -> None:
    """Refuse an array whose header promises more or less than the bytes that follow it."""
    promised = math.prod(shape) * dtype.itemsize
    if promised != there:
        raise CoterieError(f"its header promises {promised:,} bytes, the file has {there:,}", code="data-file-damaged")


def array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int, bool]:
    """The shape and type that an array's header names, where its data begins, and whether it is in Fortran order."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise CoterieError(
            f"it is of the format {version[0]}.{version[1]} of numpy, which is not read", code="data-file-format"
        )
    shape, by_columns, dtype = read(stream)
    if any(n < 0 for n in shape):
        raise CoterieError(f"its header names the shape {shape}", code="data-file-damaged")
    return shape, dtype, stream.tell(), by_columns


Channels: TypeAlias = Literal["first", "last"]
IS_TEST = {"train": False, "val": False, "validation": False, "0": False, "false": False}
IS_TEST |= {"test": True, "1": True, "true": True}
IS_TEST_OF_THREE = IS_TEST | {"1": False, "2": True}  # where numbers stand for train, val and test


@plain(frozen=True, eq=False)
class Cells:
    """Values, one per sample, and what an error calls them and their rows."""

    values: NDArray[Any] | Sequence[Any]
    title: str  # "houses.csv, column 'price'"
    row: Callable[[int], str] = "sample {}".format

    def refuse(self, row: int, fault: str) -> NoReturn:
        """Say what is wrong with the value of a row."""
        raise CoterieError(f"data: {self.title}, {self.row(row)}: {fault}", code="data-cell")

    def full(self) -> list[Any]:
        """The values, none of them missing."""
        values = self.values.tolist() if isinstance(self.values, np.ndarray) else list(self.values)
        for row, value in enumerate(values):
            if value is None or value == "":
                self.refuse(row, "the value is missing; fill it in or drop the row")
        return values


def inputs(
    x: NDArray[Any], title: str, *, divisor: float | None = None, words: bool = False, channels: Channels | None = None
) -> tuple[Tensor, Scale | None]:
    """Samples of any shape as a tensor, and their scale: bytes are divided by 255, `words` stay as they are."""
    if x.dtype.kind not in "biuf" or not x.ndim or (words and x.dtype.kind not in "iu"):
        wanted = "whole numbers (words)" if words else "numbers"
        raise CoterieError(
            f"data: {title} has {x.dtype} of shape {x.shape}; expected {wanted}, one row per sample", code="data-shape"
        )
    if channels == "last":
        if x.ndim != 4 or x.shape[3] not in (1, 3, 4):
            raise CoterieError(
                f"data.channels: last needs images (n, height, width, 1, 3 or 4); {title} has shape {x.shape}",
                code="data-shape",
            )
        x = np.moveaxis(x, 3, 1)
    elif channels is None and x.dtype == np.uint8 and x.ndim == 4 and x.shape[3] in (3, 4) and x.shape[1] > 4:
        raise CoterieError(
            f"data.channels: {title} has shape {x.shape}, which looks like (n, height, width, channels); "
            "write channels: last, or first if that is what it is",
            code="data-shape",
        )
    elif x.ndim == 1 or (x.ndim == 3 and x.dtype == np.uint8 and not words):
        x = x[:, None]
    byte = x.dtype == np.uint8
    # What torch has no type for, or that nobody needs: bool, unsigned words, float64, foreign byte orders.
    kept = {"b1": "u1", "u2": "i4", "u4": "i8", "u8": "i8", "f8": "f4", "f16": "f4"}
    stored = x.dtype.str[1:]
    kind = "i8" if words else kept.get(stored, stored)
    with np.errstate(over="ignore"):  # what becomes Inf is refused, by client, before a run
        x = np.require(x, kind, ["C", "W"])  # torch warns of what it could not write to
    scale = None if words else Scale(divisor if divisor is not None else 255.0 if byte else 1.0)
    return as_stored(x), scale


def as_stored(array: NDArray[Any]) -> Tensor:
    """As a tensor with the strides that torch gives itself: numpy may leave any at an axis of one element."""
    return torch.from_numpy(array.reshape(-1)).view(array.shape)


def outcome(column: Cells, task: Kind | None = None, classes: int | None = None) -> tuple[Tensor, int]:
    """Integers as labels (n,), strings as labels in the order of the sorted names, floats as targets (n, k); and how
    many classes or targets there are."""
    y = np.asarray(column.values)
    if y.dtype.kind in "OUS":
        y = np.array(column.full())
    if y.dtype.kind not in "biufU":
        raise CoterieError(
            f"data: {column.title} has values of {y.dtype}; expected whole numbers, names or floats", code="data-type"
        )
    if y.dtype.kind == "U":
        if task == "regression":
            row = next(i for i, cell in enumerate(y) if np.isnan(number_in(str(cell))))
            column.refuse(
                row, f"'{str(y[row])[:80]}' is no number, and task is regression; write numbers or leave task out"
            )
        names, y = np.unique(y, return_inverse=True)
        classes = classes or len(names)
    if y.dtype.kind == "f" and task == "classification":
        odd = np.flatnonzero(y.reshape(len(y), -1)[:, 0] % 1 != 0)
        if len(odd):
            column.refuse(
                int(odd[0]), f"{y.flat[odd[0]]} is no class; write whole numbers or names, or task: regression"
            )
        y = y.astype(np.int64)
    if y.dtype.kind == "f" or task == "regression":
        refuse_vectors(as_stored(y.astype(np.float64)), column.title, task)
        targets = as_stored(y.astype(np.float64).reshape(len(y), -1)).to(torch.get_default_dtype())
        return targets, targets.shape[1]
    refuse_vectors(as_stored(y), column.title, task)
    if y.size != len(y):
        raise CoterieError(
            f"data: {column.title} has shape {y.shape}; labels are one whole number per sample. Several numbers of a "
            "sample, as the losses multilabel and tokens take them, are stored as floats: y.astype('float32')",
            code="data-labels",
        )
    labels = torch.from_numpy(y.reshape(-1).astype(np.int64))
    if int(labels.min()) < 0:
        row = int(labels.argmin())
        column.refuse(row, f"the label {int(labels[row])} is negative; number the classes 0..K-1, or store names")
    if task is None and classes is None:
        remedy = "If they are amounts, write task: regression (or store floats); if classes, task: classification."
        warn_of_amounts(labels, column.title, remedy)
        warn_of_no_zero(labels, column.title, "If they are right as they are, write task: classification.")
    return labels, classes or int(labels.max()) + 1


def class_names(column: Cells) -> tuple[str, ...] | None:
    """The names of the classes, in the order in which `outcome` numbers them; None where they are numbers."""
    y = np.asarray(column.values)
    y = np.array(column.full()) if y.dtype.kind in "OUS" else y
    return tuple(map(str, np.unique(y))) if y.dtype.kind == "U" else None


def owners(column: Cells) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Clients 0..N-1 in the order of their sorted names, by number if all names are whole numbers; and the names."""
    found: dict[str | int, int] = {}
    codes = np.array([found.setdefault(value, len(found)) for value in column.full()])
    for value, code in found.items():
        if not isinstance(value, str | int):
            row = int(np.argmax(codes == code))
            column.refuse(row, f"{value!r} is no name of a client; write strings or whole numbers")
    names = [str(value) for value in found]
    try:
        order = sorted(range(len(names)), key=lambda i: (int(names[i]), names[i]))
    except ValueError:
        order = sorted(range(len(names)), key=names.__getitem__)
    return np.argsort(order)[codes].astype(np.int64), tuple(names[i] for i in order)


def groups_of(column: Cells, client: NDArray[np.int64] | None, names: tuple[str, ...] | None) -> tuple[str | None, ...]:
    """The group of each client 0..N-1: what all its rows say that say anything; None where no row does."""
    if client is None or names is None:
        raise CoterieError(
            f"data.group: {column.title} names the groups of clients; name their column too: data.client=COLUMN",
            code="config-missing-key",
        )
    found: list[str | None] = [None] * len(names)
    for row, (value, owner) in enumerate(zip(column.values, client, strict=True)):
        group = "" if value is None else str(value).strip()
        if group and found[owner] not in (None, group):
            column.refuse(row, f"client '{names[owner]}' is in '{found[owner]}' and in '{group}'; it can be in one")
        found[owner] = group or found[owner]
    return tuple(found)


def official(column: Cells) -> NDArray[np.bool_] | None:
    """Which samples are the test set; None if none is. For `val` see `validation`."""
    flags = np.zeros(len(column.values), dtype=bool)
    values = column.full()
    words = [str(value).strip().lower() for value in values]
    meaning = IS_TEST_OF_THREE if "2" in words else IS_TEST
    for row, word in enumerate(words):
        flag = meaning.get(word)
        if flag is None:
            instead = "write train, val or test, 0 and 1 (1 is test), or 0, 1 and 2 (2 is test)"
            column.refuse(row, f"{values[row]!r} is no split; {instead}")
        flags[row] = flag
    if flags.all():
        raise CoterieError(
            f"data: {column.title}: every sample is a test sample; none is left to train on", code="data-split"
        )
    return flags if flags.any() else None


def validation(column: Cells) -> NDArray[np.bool_] | None:
    """Which samples are marked for validation; None if none is."""
    words = [str(value).strip().lower() for value in column.full()]
    marks = ("val", "validation", "1") if "2" in words else ("val", "validation")
    flags = np.array([word in marks for word in words])
    return flags if flags.any() else None


def times(column: Cells) -> NDArray[np.float64]:
    """When each sample was: numbers as they are, dates as seconds since 1970."""
    values = column.values.tolist() if isinstance(column.values, np.ndarray) else list(column.values)
    found = np.array([number_in(value) if isinstance(value, str) else _number_of(value) for value in values])
    if not np.isfinite(found).any():
        dates = [time_in(value.strip() if isinstance(value, str) else value) for value in values]
        found = np.array([np.nan if when is None else when for when in dates], dtype=np.float64)
    for row in np.flatnonzero(~np.isfinite(found)).tolist():
        gone = is_hole(values[row]) or not str(values[row]).strip()
        fault = "the time is missing" if gone else f"{str(values[row])!r} is no time"
        column.refuse(row, f"{fault}; write numbers in every row, or ISO dates (2024-03-01, 2024-03-01T12:30)")
    if len(found) and found.min() == found.max():
        raise CoterieError(
            f"data.time: {column.title} has the same time in every row; name another column or leave time out",
            code="data-column-invalid",
        )
    return found


def _number_of(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")


def file_at(path: str) -> Path:
    file = user_path(path)
    if not file.is_file():
        what = "is a directory" if file.is_dir() else "does not exist"
        raise CoterieError(f"data.path: {path} {what}; give a file, seen from {Path.cwd()}", code="data-file-missing")
    return file


def known_name(key: str, name: str, names: Sequence[str], where: str) -> str:
    if name not in names:
        raise CoterieError(f"data.{key}: {where} has no '{name}'.{suggest(name, names)}", code="data-column-unknown")
    return name


CHUNK_ROWS = 5_000  # of a table that are held at a time
CHUNK_BYTES = 1 << 24  # of the inputs of an npz file
HELD_AS_TEXT = 50_000  # rows of a csv file at a time, while it is read whole


@plain(frozen=True, eq=False)
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


@plain(frozen=True, eq=False)
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
        """At most `CHUNK_ROWS` lines at a time."""
        wanted = list(dict.fromkeys([*features, *others]))
        with reading(self.path), opened_csv(self.path, self.title) as (header, numbered):
            places = {name: header.index(name) for name in wanted}
            first = 0
            while rows := list(islice(numbered, CHUNK_ROWS)):
                lines = [line for line, _ in rows]
                cells = {name: _objects([row[i].strip() for _, row in rows]) for name, i in places.items()}
                yield Chunk(first, cells, lambda row, lines=lines: f"line {lines[row]}")  # type: ignore[misc]
                first += len(rows)


@plain(frozen=True, eq=False)
class ParquetRows:
    """A parquet file."""

    path: Path
    title: str
    names: tuple[str, ...]

    @staticmethod
    def open(path: Path) -> ParquetRows:
        with reading(path), _parquet_module().ParquetFile(path) as opened:
            return ParquetRows(path, str(path), tuple(opened.schema_arrow.names))

    def chunks(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Chunk]:
        """At most `CHUNK_ROWS` rows at a time."""
        import pyarrow as arrow

        wanted, first = list(dict.fromkeys([*features, *others])), 0
        with reading(self.path), _parquet_module().ParquetFile(self.path) as opened:
            for batch in opened.iter_batches(CHUNK_ROWS, columns=wanted):
                columns: dict[str, NDArray[Any]] = {}
                for name in wanted:
                    column = batch.column(name)
                    if name not in others and is_number(arrow, column.type):
                        columns[name] = column.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
                    else:
                        columns[name] = _objects(column.to_pylist())
                yield Chunk(first, columns, _named_row("row {} (the first is 0)", first))
                first += batch.num_rows


@plain(frozen=True, eq=False)
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
        """About `CHUNK_BYTES` of inputs at a time; without features only the other arrays."""
        with reading(self.path), zipfile.ZipFile(self.path) as archive, ExitStack() as stack:
            named = {name: _Member.open(self.path, archive, name, stack) for name in others}
            inputs = _Member.open(self.path, archive, self.x, stack) if features else None
            every = named | ({} if inputs is None else {self.x: inputs})
            many = next(iter(every.values())).length
            size = CHUNK_ROWS if inputs is None else max(1, CHUNK_BYTES // max(inputs.width, 1))
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
                yield Chunk(first, columns, _named_row("sample {}", first), x)


@plain(frozen=True, eq=False)
class TableRows:
    """A table in memory: a DataFrame, a dict of columns."""

    table: Any
    names: tuple[str, ...]
    title: str = "the table"

    def chunks(self, features: Sequence[str], others: Sequence[str]) -> Iterator[Chunk]:
        """At most `CHUNK_ROWS` rows at a time."""
        columns = {name: np.asarray(self.table[name]) for name in dict.fromkeys([*features, *others])}
        if len({len(column) for column in columns.values()}) > 1:
            raise CoterieError(f"{self.title}: its columns differ in length", code="data-column-invalid")
        for first in range(0, len(next(iter(columns.values()), ())), CHUNK_ROWS):
            part = {name: column[first : first + CHUNK_ROWS] for name, column in columns.items()}
            yield Chunk(first, part, _named_row("row {} (the first is 0)", first))


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


@plain
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


def _named_row(text: str, first: int) -> Callable[[int], str]:
    return lambda row: text.format(first + row)


def _parquet_module() -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise CoterieError(
            "a parquet file needs pyarrow; pip install 'coterie[parquet]'", code="extra-missing"
        ) from None
    return parquet


MANY = 1_000  # classes; more than this and more than there are rows: these numbers are no classes


@plain(frozen=True, eq=False)
class Read:
    """What was read of a table: the columns that may be inputs, and the others as they are."""

    features: list[ColumnReader]
    others: dict[str, list[Any]]
    row: Callable[[int], str]


@dataclass(frozen=True, config=STRICT)
class Table:
    """What csv and parquet have in common: named columns, one row per sample."""

    paper: ClassVar[str] = ""
    owned: ClassVar[bool] = True  # its samples may say whose they are

    path: str
    y: str  # column of the labels or targets
    client: str | None = None  # column of the owners
    split: str | None = None  # column of train, val and test
    x: tuple[str, ...] | None = None  # columns of the features; None: all others that are of use
    standardise: bool = True  # features to mean 0 and deviation 1, as measured on the training rows
    standardise_y: bool = True  # the same for the targets of a regression; metrics and predictions are in their units
    task: Kind | None = None  # None: whole numbers and names are classes, other numbers a regression
    leave_out: Names = ()  # columns that are not features
    missing: Missing = "mean"  # of the training rows; drop: leave the row out; refuse; or {column: number}
    categories: Categories = "auto"  # auto: text with few values; none; also [columns]; or only {column: [values]}
    time: str | None = None  # column of numbers or dates: a client's latest rows are its test rows
    group: str | None = None  # column of the groups that clients are in, for method.name=given; no feature then
    text: Names = ()  # columns of text whose words become inputs; if there is nothing else, prose is found by itself
    size: PositiveInt = 512  # numbers of a hashed text
    na: NotAvailable = "missing"  # what NA and ? are in a column of text or of labels; value: a value (Namibia)

    def _read(self, file: Path) -> Read:
        raise NotImplementedError

    def __call__(self) -> Dataset:
        """Read it."""
        file = file_at(self.path)
        with reading(file):
            read = self._read(file)
            if self.x is None and not self.text and (prose := only_prose(read.features, self.rules)):
                return replace(self, text=prose)()
            return self.dataset(read, file.stem)

    @property
    def rules(self) -> ColumnRules:
        """What is said of its columns."""
        asked = self.x is not None
        return ColumnRules(self.missing, self.categories, self.leave_out, asked, self.text, self.size, self.na)

    def dataset(self, read: Read, name: str) -> Dataset:
        """A data set of what was read."""
        if not any(read.others.values()):
            raise CoterieError(
                f"data.path: {self.path} has no rows; a header, then one row per sample, is expected", code="data-empty"
            )
        roles = self._roles([*(reader.name for reader in read.features), *read.others])
        chosen = choose(read.features, self.rules, self.path, read.row)
        rows = np.flatnonzero(self._kept(chosen, read, roles))
        columns = {
            key: Cells(
                [read.others[column][row] for row in rows.tolist()],
                f"{self.path}, column '{column}'",
                lambda row: read.row(int(rows[row])),
            )
            for key, column in roles.items()
        }
        return self._assembled(chosen, chosen.x[rows], columns, name)

    def _kept(self, chosen: ChosenColumns, read: Read, roles: dict[str, str]) -> NDArray[np.bool_]:
        """(rows,) those that are of use: with a label and an owner, and not left out for a missing input."""
        kept = np.ones(len(chosen.x), dtype=bool) if chosen.keep is None else chosen.keep
        refuse, na = self.missing == "refuse", self.na == "value"
        for key, what in (("y", "to be predicted"), ("client", "the owner of each row")):
            if key not in roles:
                continue
            literal = key == "client" or (na and self.missing != "drop")  # an owner may be called NA
            cells = map(as_cell, read.others[roles[key]])
            known = np.array([c != "" if literal else category(c, na=na) is not None for c in cells], dtype=bool)
            if known.all():
                continue
            gone = int((~known).sum())
            if refuse:
                where = f"data: {self.path}, column '{roles[key]}', {read.row(int(known.argmin()))}"
                fault = "the value is missing; fill it in or drop the row (data.missing=mean leaves such rows out)"
                raise CoterieError(f"{where}: {fault}", code="data-cell")
            warnings.warn(
                f"data: {self.path}: column '{roles[key]}', {what}, is empty in {gone:,} of "
                f"{counted(len(known), 'row')}; {'it is' if gone == 1 else 'these are'} left out.",
                CoterieWarning,
                stacklevel=2,
            )
            kept = np.asarray(kept & known)
        if not kept.any():
            drop = ", and missing is drop; write mean" if self.missing == "drop" else f" ({', '.join(roles.values())})"
            raise CoterieError(f"data: {self.path}: every row has a missing value{drop}", code="data-empty")
        return kept

    def _assembled(
        self, chosen: ChosenColumns, values: NDArray[np.float32], columns: dict[str, Cells], name: str
    ) -> Dataset:
        y, classes, called = self._outcome(columns["y"])
        client, names = owners(columns["client"]) if "client" in columns else (None, None)
        test = official(columns["split"]) if "split" in columns else None
        if test is not None and "time" in columns:
            raise CoterieError(
                f"data.time: {columns['split'].title} says already which rows are for testing; leave time out, or the "
                "column split",
                code="config-conflict",
            )
        x, plan = as_stored(values), chosen.plan(values, self.standardise)
        return Dataset(
            *(name, x, y, classes, Scale(), test, client, names),
            features=chosen.names,
            left_out=chosen.left_out,
            standardise_x=self.standardise and plan is None,
            standardise_y=self.standardise_y,
            class_names=called,
            validation=validation(columns["split"]) if "split" in columns else None,
            plan=plan,
            remarks=(*chosen.remarks, *((f"test rows: each client's latest by '{self.time}'",) if self.time else ())),
            time=times(columns["time"]) if "time" in columns else None,
            groups=groups_of(columns["group"], client, names) if "group" in columns else None,
        )

    def _roles(self, header: Sequence[str]) -> dict[str, str]:
        """The columns that are no features, by what they are for; and every name that was given is one."""
        for name in self.x or ():
            known_name("x", name, header, self.path)
        out = {}
        taken = {self.y, self.time, self.group, *(self.x or ()), *self.leave_out}
        for key in ("y", "client", "split", "time", "group"):
            name = getattr(self, key)
            if name is None and key in header and key not in ("time", "group") and key not in taken:
                name = key
            if name is not None:
                out[key] = known_name(key, name, header, f"{self.path} (its first line names the columns)")
        features = [name for name in dict.fromkeys(self.x or ()) if name != self.time]  # a time may be a feature too
        every = [*out.values(), *features, *set(self.leave_out)]
        twice = {name for name in every if every.count(name) > 1}
        if twice:
            raise CoterieError(
                f"data: {self.path}, column '{min(twice)}' is asked to be two things; name others",
                code="data-column-invalid",
            )
        return out

    def split_columns(self, header: Sequence[str]) -> tuple[list[str], list[str]]:
        """Columns that are, or may be, features, and the others that are needed."""
        others = list(self._roles(header).values())
        unused = {*others, *self.leave_out}
        named = list(dict.fromkeys((*(self.x or ()), *self.text)))
        features = [name for name in header if name not in unused] if self.x is None else named
        self.rules.check(header, features, self.path)
        return features, others

    def _outcome(self, column: Cells) -> tuple[Tensor, int, tuple[str, ...] | None]:
        values = column.full()
        typed = _typed(values) if isinstance(values[0], str) else np.array(values)
        if typed.dtype.kind == "f" and not np.isfinite(typed).all():
            column.refuse(int(np.argmin(np.isfinite(typed))), "NaN or Inf is no target; fill it in or drop the row")
        if typed.dtype.kind == "f" and self.task is None and ((typed % 1 == 0) & (np.abs(typed) < 2**53)).all():
            typed = typed.astype(np.int64)
        column = Cells(typed, column.title, column.row)
        y, classes = outcome(column, self.task)
        if self.task is None and not y.is_floating_point() and classes > max(MANY, len(y)):
            raise CoterieError(
                f"data: {column.title} would have {classes:,} classes in {len(y):,} rows; write task: regression, "
                "or number the classes 0..K-1",
                code="data-labels",
            )
        return y, classes, class_names(column)


def _typed(cells: Sequence[str]) -> NDArray[Any]:
    """Text as whole numbers if all are, else as numbers if all are, else as it is."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(cells).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(cells)


def _width(stream: IO[str], mark: str) -> int:
    """How many columns the header has, if this separates them."""
    try:
        return len(next(filter(None, csv.reader(stream, delimiter=mark, strict=True)), []))
    except csv.Error:  # quotes that make no sense with this mark
        return 0
    finally:
        stream.seek(0)


@contextmanager
def opened_csv(file: Path, title: str) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """The header of a csv file, and its rows one by one, each with the line it ends on. title: what errors call it."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            mark = max(",;\t", key=lambda mark: _width(stream, mark))
            reader = csv.reader(stream, delimiter=mark, strict=True)
            header = [name.strip() for name in next(filter(None, reader), [])]
            _check_header(header, title)
            yield header, _numbered(reader, header, title)
    except UnicodeDecodeError as error:
        raise CoterieError(
            f"data.path: {title} is not UTF-8 text ({error.reason}); save it as UTF-8", code="data-file-format"
        ) from None
    except csv.Error as error:
        raise CoterieError(
            f"data.path: {title} is not a csv file ({error}); look for a quote out of place", code="data-file-damaged"
        ) from None


def _numbered(reader: Any, header: Sequence[str], title: str) -> Iterator[tuple[int, list[str]]]:
    for row in reader:
        if len(row) == len(header):
            yield reader.line_num, row
        elif row:
            raise CoterieError(
                f"data: {title}, line {reader.line_num}: {len(row)} cells, but the header names {len(header)} columns",
                code="data-cell",
            )


def _check_header(header: Sequence[str], title: str) -> None:
    if "" in header:
        raise CoterieError(
            f"data: {title}: column {header.index('') + 1} has no name in the header; name it, or leave it out "
            "(pandas: to_csv(path, index=False))",
            code="data-column-invalid",
        )
    numbers = [name for name in header if math.isfinite(number_in(name))]
    if 2 * len(numbers) >= len(header) and any("." in name for name in numbers):  # whole numbers may be names
        raise CoterieError(
            f"data: {title}: its first line has numbers ({', '.join(header[:3])}, ...), not names; write a line with "
            "the names of the columns above it",
            code="data-column-invalid",
        )
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise CoterieError(
            f"data: {title}: two columns are called '{twice[0]}'; rename one", code="data-column-invalid"
        )


@dataclass(frozen=True, config=STRICT)
class CSV(Table):
    """Your own table from a csv file: a header, then one row per sample; separated by comma, semicolon or tab.

    Columns called `client` (the owner of each row) and `split` (train, val, test) are used without being named; val
    is trained on unless the run validates (`validation`). Text with few different values becomes one input for each
    value; other text and dates are left out, and named. Missing values are filled in. UTF-8.
    """

    def _read(self, file: Path) -> Read:
        with opened_csv(file, self.path) as (header, numbered):
            return self._parse(header, numbered)

    def _parse(self, header: list[str], numbered: Iterable[tuple[int, list[str]]]) -> Read:
        features, others = self.split_columns(header)
        readers = [self.rules.reader(name) for name in features]
        read = Read(readers, {name: [] for name in others}, lambda row: f"line {lines[row]}")
        lines: list[int] = []  # where each row ends: cells may have line breaks in them, and blank lines are no rows
        once: dict[str, str] = {}  # few different texts: each is held once

        def rows() -> Iterator[list[str]]:
            for line, row in numbered:
                lines.append(line)
                yield row

        every = rows()
        while chunk := list(islice(every, HELD_AS_TEXT)):
            cells = dict(zip(header, zip(*chunk, strict=True), strict=True))
            for column in readers:
                column.add(cells[column.name])
            for name in others:
                read.others[name].extend(once.setdefault(text, text) for text in map(str.strip, cells[name]))
        return read


@dataclass(frozen=True, config=STRICT)
class Parquet(Table):
    """Your own table from a parquet file, one row per sample; it needs pyarrow: pip install 'coterie[parquet]'.

    Columns called `client` (the owner of each row) and `split` (train, val, test) are used without being named; val
    is trained on unless the run validates (`validation`). Text with few different values becomes one input for each
    value; other text and dates are left out, and named. Missing values are filled in.
    """

    largest: PositiveInt = LARGEST  # bytes that the file may inflate to, unless it is itself larger

    def _read(self, file: Path) -> Read:
        try:
            import pyarrow as arrow
            from pyarrow import parquet
        except ImportError:
            raise CoterieError(
                "data.name: parquet needs pyarrow; pip install 'coterie[parquet]'", code="extra-missing"
            ) from None
        try:
            with parquet.ParquetFile(file) as opened:
                names = opened.schema_arrow.names
                features, others = self.split_columns(names)
                # 8 bytes a number: a column of one value takes none in the file.
                check_inflated(file, opened.metadata.num_rows * len(names) * 8, self.largest)
                table = opened.read(columns=[name for name in names if name in features or name in others])
        except (arrow.ArrowException, OSError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise CoterieError(
                f"data.path: {self.path} cannot be read as a parquet file: {why}", code="data-file-damaged"
            ) from None
        readers = [self.rules.reader(name) for name in features]
        for reader in readers:
            column = table.column(reader.name)
            if is_number(arrow, column.type) and not reader.as_text:
                reader.add_values(column.cast(arrow.float64(), safe=False).to_numpy())
            else:
                reader.add([as_cell(value) for value in column.to_pylist()])
        return Read(
            readers, {name: table.column(name).to_pylist() for name in others}, "row {} (the first is 0)".format
        )


def is_number(arrow: Any, kind: Any) -> bool:
    """Whether a column of this pyarrow type has numbers."""
    types = arrow.types
    return any(is_(kind) for is_ in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal))


@explained_call
def from_frame(
    frame: Any,
    y: str,
    *,
    client: str | None = None,
    split: str | None = None,
    time: str | None = None,
    group: str | None = None,
    x: Sequence[str] | None = None,
    leave_out: Sequence[str] = (),
    missing: Missing = "mean",
    categories: Categories = "auto",
    text: Sequence[str] = (),
    size: int = 512,
    na: NotAvailable = "missing",
    standardise: bool = True,
    standardise_y: bool = True,
    task: Kind | None = None,
    name: str = "table",
) -> Dataset:
    """A data set of a DataFrame, one row per sample; the parameters are those of `coterie.data.CSV`.

    frame: whatever names its columns and gives one by its name. name: what the data set is called.
    """
    names = column_names(frame)
    if names is None:
        raise CoterieError(
            f"from_frame: a {type(frame).__name__} without named columns; give a DataFrame or a dict of columns, or "
            "use coterie.Federation.from_arrays",
            code="data-type",
        )
    table = Table(
        *(name, y, client, split, None if x is None else tuple(x), standardise, standardise_y, task),
        leave_out=leave_out,  # type: ignore[arg-type]  # pydantic makes a tuple of it
        missing=missing,
        categories=categories,
        time=time,
        group=group,
        text=text,  # type: ignore[arg-type]  # likewise
        size=size,
        na=na,
    )
    features, others = table.split_columns(names)
    wanted = [*features, *(other for other in others if other not in features)]
    columns = {column: one_column(frame, column, wanted, "from_frame") for column in wanted}
    same_length(list(columns.values()), wanted, "from_frame")
    readers = _read_frame(table, features, columns)
    if x is None and not text and (prose := only_prose(readers, table.rules)):
        table = replace(table, text=prose)
        readers = _read_frame(table, features, columns)
    data = table.dataset(
        Read(readers, {other: _listed(columns[other]) for other in others}, "row {} (the first is 0)".format), name
    )
    if data.left_out:
        warnings.warn(f"data: {name}: {data.remarks[0]}", CoterieWarning, stacklevel=3)
    return data


def _read_frame(table: Table, features: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> list[ColumnReader]:
    readers = [table.rules.reader(name) for name in features]
    for reader in readers:
        reader.add_values(columns[reader.name])
    return readers


def _listed(column: NDArray[Any]) -> list[Any]:
    """The values as Python has them, None where one is missing."""
    values = column.astype("datetime64[us]") if column.dtype.kind == "M" else column
    return [None if is_hole(value) and not isinstance(value, float) else value for value in values.tolist()]
