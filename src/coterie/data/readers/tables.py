"""A user's own csv and parquet files, one row per sample."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass as plain
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor

from coterie.core.constructors import dataclass
from coterie.core.errors import CoterieError
from coterie.core.types import STRICT, Kind
from coterie.data.dataset import Dataset
from coterie.data.readers.checks import LARGEST, check_inflated, reading
from coterie.data.readers.columns import (
    Column,
    as_stored,
    class_names,
    file_at,
    groups_of,
    known_name,
    number_in,
    official,
    outcome,
    owners,
    validation,
)
from coterie.data.scale import Scale

MANY = 1_000  # classes; more than this and more than there are rows: these numbers are no classes
CHUNK = 50_000  # rows of a csv file that are held as text at a time


@plain(frozen=True, eq=False)
class Read:
    """What was read of a table: feature columns as numbers, NaN where there is none, the others as they are."""

    numbers: dict[str, NDArray[np.float32]]
    bad: dict[str, tuple[int, str]]  # first row of a feature column that is no number, and what is there
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
    x: tuple[str, ...] | None = None  # columns of the features; None: all others that are numbers
    standardise: bool | Literal["all"] = True  # features to mean 0, deviation 1: by training rows; 0.1 did by "all"
    standardise_y: bool = True  # the same for the targets of a regression; metrics and predictions are in their units
    task: Kind | None = None  # None: whole numbers and names are classes, other numbers a regression
    group: str | None = None  # column of the groups that clients are in, for method.name=given; no feature then

    def _read(self, file: Path) -> Read:
        raise NotImplementedError

    def __call__(self) -> Dataset:
        """Read it."""
        file = file_at(self.path)
        with reading(file):
            return self._dataset(file)

    def _dataset(self, file: Path) -> Dataset:
        read = self._read(file)
        if not any(read.others.values()):
            raise CoterieError(
                f"data.path: {self.path} has no rows; a header, then one row per sample, is expected", code="data-empty"
            )
        columns = {
            key: Column(read.others[name], f"{self.path}, column '{name}'", read.row)
            for key, name in self._roles([*read.numbers, *read.others]).items()
        }
        y, classes, called = self._outcome(columns["y"])
        client, names = owners(columns["client"]) if "client" in columns else (None, None)
        test = official(columns["split"]) if "split" in columns else None
        chosen = self._features(read)
        x = as_stored(np.stack(list(chosen.values()), 1))
        return Dataset(
            *(file.stem, x, y, classes, self._scale(x, test), test, client, names),
            features=tuple(chosen),
            left_out=tuple(name for name in read.numbers if name not in chosen),
            standardise_x=self.standardise is True and test is None,  # who splits it says what the training rows are
            standardise_y=self.standardise_y,
            class_names=called,
            validation=validation(columns["split"]) if "split" in columns else None,
            groups=groups_of(columns["group"], client, names) if "group" in columns else None,
        )

    def _roles(self, header: Sequence[str]) -> dict[str, str]:
        """The columns that are no features, by what they are for; and every name that was given is one."""
        for name in self.x or ():
            known_name("x", name, header, self.path)
        out = {}
        for key in ("y", "client", "split", "group"):
            name = getattr(self, key)
            if name is None and key != "group" and key in header and key not in (self.y, *(self.x or ())):
                name = key
            if name is not None:
                out[key] = known_name(key, name, header, f"{self.path} (its first line names the columns)")
        twice = {name for name in out.values() if name in (self.x or ()) or list(out.values()).count(name) > 1}
        if twice:
            raise CoterieError(
                f"data: {self.path}, column '{min(twice)}' is asked to be two things; name others",
                code="data-column-invalid",
            )
        return out

    def _split_columns(self, header: Sequence[str]) -> tuple[list[str], list[str]]:
        """Columns that are, or may be, features, and the others that are needed."""
        others = list(self._roles(header).values())
        features = [name for name in header if name not in others] if self.x is None else list(dict.fromkeys(self.x))
        return features, others

    def _outcome(self, column: Column) -> tuple[Tensor, int, tuple[str, ...] | None]:
        values = column.full()
        typed = _typed(values) if isinstance(values[0], str) else np.array(values)
        if typed.dtype.kind == "f" and not np.isfinite(typed).all():
            column.refuse(int(np.argmin(np.isfinite(typed))), "NaN or Inf is no target; fill it in or drop the row")
        if typed.dtype.kind == "f" and self.task is None and ((typed % 1 == 0) & (np.abs(typed) < 2**53)).all():
            typed = typed.astype(np.int64)
        column = Column(typed, column.title, column.row)
        y, classes = outcome(column, self.task)
        if self.task is None and not y.is_floating_point() and classes > max(MANY, len(y)):
            raise CoterieError(
                f"data: {column.title} would have {classes:,} classes in {len(y):,} rows; write task: regression, "
                "or number the classes 0..K-1",
                code="data-labels",
            )
        return y, classes, class_names(column)

    def _features(self, read: Read) -> dict[str, NDArray[np.float32]]:
        chosen = {}
        for name, values in read.numbers.items():
            if name in read.bad and (self.x is not None or not np.isnan(values).all()):
                row, text = read.bad[name]
                Column((), f"{self.path}, column '{name}'", read.row).refuse(
                    row,
                    f"{text!r} is no number (1.5 is); correct it, or name the feature columns in x without this one",
                )
            if name not in read.bad:
                chosen[name] = values
        if not chosen:
            raise CoterieError(
                f"data.x: {self.path} has no feature columns: no column but y, client, split has numbers",
                code="data-column-unknown",
            )
        return chosen

    def _scale(self, x: Tensor, test: NDArray[np.bool_] | None) -> Scale:
        if not self.standardise:
            return Scale()
        means, stds = [], []
        for column in (x if test is None else x[torch.from_numpy(~test)]).unbind(1):
            std, mean = torch.std_mean(column.double(), correction=0)
            constant = bool(column.min() == column.max())  # by rounding, its deviation need not be 0
            means.append(float(mean))
            stds.append(1.0 if constant else float(std))
        return Scale(1.0, torch.tensor(means), torch.tensor(stds))


def _width(stream: IO[str], mark: str) -> int:
    """How many columns the header has, if this separates them."""
    try:
        return len(next(filter(None, csv.reader(stream, delimiter=mark, strict=True)), []))
    except csv.Error:  # quotes that make no sense with this mark
        return 0
    finally:
        stream.seek(0)


def _typed(cells: Sequence[str]) -> NDArray[Any]:
    """Text as whole numbers if all are, else as numbers if all are, else as it is."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(cells).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(cells)


def _numbers(cells: Sequence[str]) -> NDArray[np.float32]:
    """Text as numbers; NaN where it is none, or no finite one."""
    try:
        wide = np.array(list(map(float, cells)))
    except ValueError:
        wide = np.array([number_in(cell) for cell in cells])
    return _finite(wide)


def _finite(wide: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        values = wide.astype(np.float32)
    values[~np.isfinite(values)] = np.nan
    return values


@dataclass(frozen=True, config=STRICT)
class CSV(Table):
    """Your own table from a csv file: a header, then one row per sample; separated by comma, semicolon or tab.

    Columns called `client` (the owner of each row) and `split` (train, val, test) are used without being named; val
    is trained on unless the run validates (`validation`). Columns without any number are left out of the features,
    unless x names them. UTF-8.
    """

    def _read(self, file: Path) -> Read:
        try:
            with file.open(encoding="utf-8-sig", newline="") as stream:
                return self._parse(stream, max(",;\t", key=lambda mark: _width(stream, mark)))
        except UnicodeDecodeError as error:
            raise CoterieError(
                f"data.path: {self.path} is not UTF-8 text ({error.reason}); save it as UTF-8", code="data-file-format"
            ) from None
        except csv.Error as error:
            raise CoterieError(
                f"data.path: {self.path} is not a csv file ({error}); look for a quote out of place",
                code="data-file-damaged",
            ) from None

    def _parse(self, stream: Iterable[str], mark: str) -> Read:
        reader = csv.reader(stream, delimiter=mark, strict=True)
        header = [name.strip() for name in next(filter(None, reader), [])]
        self._check_header(header)
        features, others = self._split_columns(header)
        numbers: dict[str, list[NDArray[np.float32]]] = {name: [] for name in features}
        read = Read({}, {}, {name: [] for name in others}, lambda row: f"line {lines[row]}")
        lines: list[int] = []  # where each row ends: cells may have line breaks in them, and blank lines are no rows
        once: dict[str, str] = {}  # few different texts: each is held once

        def rows() -> Iterator[list[str]]:
            for row in reader:
                if len(row) == len(header):
                    lines.append(reader.line_num)
                    yield row
                elif row:
                    where = f"{self.path}, line {reader.line_num}"
                    raise CoterieError(
                        f"data: {where}: {len(row)} cells, but the header names {len(header)} columns", code="data-cell"
                    )

        every = rows()
        while chunk := list(islice(every, CHUNK)):
            cells = dict(zip(header, zip(*chunk, strict=True), strict=True))
            for name in features:
                values = _numbers(cells[name])
                if name not in read.bad and np.isnan(values).any():
                    row = int(np.argmax(np.isnan(values)))
                    read.bad[name] = (len(lines) - len(chunk) + row, cells[name][row])
                numbers[name].append(values)
            for name in others:
                read.others[name].extend(once.setdefault(text, text) for text in map(str.strip, cells[name]))
        read.numbers.update((name, np.concatenate(parts)) for name, parts in numbers.items() if parts)
        return read

    def _check_header(self, header: Sequence[str]) -> None:
        if "" in header:
            raise CoterieError(
                f"data: {self.path}: column {header.index('') + 1} has no name in the header; name it, or leave it out "
                "(pandas: to_csv(path, index=False))",
                code="data-column-invalid",
            )
        twice = [name for name in header if header.count(name) > 1]
        if twice:
            raise CoterieError(
                f"data: {self.path}: two columns are called '{twice[0]}'; rename one", code="data-column-invalid"
            )


@dataclass(frozen=True, config=STRICT)
class Parquet(Table):
    """Your own table from a parquet file, one row per sample; it needs pyarrow: pip install 'coterie[parquet]'.

    Columns called `client` (the owner of each row) and `split` (train, val, test) are used without being named; val
    is trained on unless the run validates (`validation`). Columns that are no numbers are left out of the features,
    unless x names them.
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
        read = Read({}, {}, {}, lambda row: f"row {row} (the first is 0)")
        try:
            with parquet.ParquetFile(file) as opened:
                names = opened.schema_arrow.names
                features, others = self._split_columns(names)
                # 8 bytes a number: a column of one value takes none in the file.
                check_inflated(file, opened.metadata.num_rows * len(names) * 8, self.largest)
                table = opened.read(columns=[name for name in names if name in features or name in others])
        except (arrow.ArrowException, OSError, ValueError) as error:
            why = str(error).splitlines()[0]
            raise CoterieError(
                f"data.path: {self.path} cannot be read as a parquet file: {why}", code="data-file-damaged"
            ) from None
        for name in features:
            column = table.column(name)
            if _is_number(arrow, column.type):
                values = _finite(column.cast(arrow.float64(), safe=False).to_numpy())
            else:
                values = np.full(len(column), np.nan, dtype=np.float32)
            missing = np.flatnonzero(np.isnan(values))
            if len(missing):
                read.bad[name] = (int(missing[0]), str(column[int(missing[0])].as_py()))
            read.numbers[name] = values
        read.others.update((name, table.column(name).to_pylist()) for name in others)
        return read


def _is_number(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return any(is_(kind) for is_ in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal))
