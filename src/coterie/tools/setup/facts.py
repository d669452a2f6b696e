"""What the columns of a file have: how many values, of which kind, missing where."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import CoterieError
from coterie.data.cells import as_cell, category, time_in
from coterie.data.column_reader import ColumnKind, ColumnReader
from coterie.data.readers.checks import LARGEST, read_member, reading
from coterie.data.readers.columns import file_at
from coterie.data.readers.tables import opened_csv
from coterie.data.table_columns import ColumnRules, text_reason

NEARLY = 0.1  # of the rows; with fewer that have no date, a column was meant as one
ROWS = 20_000  # that are looked at; enough to guess by
Format: TypeAlias = Literal["csv", "parquet", "npz"]
ENDINGS: Mapping[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".data": "csv",
    ".parquet": "parquet",
    ".npz": "npz",
}


@dataclass(frozen=True)
class Column:
    """A column of a table, or an array of one value per sample."""

    name: str
    cells: tuple[str | None, ...]  # None where one is missing
    kind: ColumnKind
    whole: bool  # whether all its numbers are whole
    dated: bool  # whether every row has a number, or an ISO date: then rows can be ordered by it
    prose: bool = False  # whether it has text of several words, that is hardly ever the same
    words: bool = False  # whether it has text of several words
    unused: str = ""  # why it would be no input, where it would be none
    untimed: int | None = None  # the first row without an ISO date, where nearly all have one

    @classmethod
    def of(cls, name: str, cells: Iterable[str]) -> Column:
        """Of cells as a csv file has them."""
        texts = list(cells)
        reader = ColumnReader(name)
        reader.add(texts)
        kept = tuple(category(text.strip()) for text in texts)
        numbers = reader.kind == "number"
        whole = numbers and all(float(cell) % 1 == 0 for cell in kept if cell is not None and _number(cell))
        full = None not in kept
        odd = [row for row, cell in enumerate(kept) if cell is None or time_in(cell) is None]
        unused = "" if reader.kind in ("number", "boolean") else text_reason(reader, ColumnRules())
        nearly = odd[0] if 0 < len(odd) <= NEARLY * len(kept) else None
        dated = full and (numbers or not odd)
        return cls(name, kept, reader.kind, whole, dated, reader.is_prose, reader.has_words, unused, nearly)

    @property
    def values(self) -> tuple[str, ...]:
        """The different values, in the order of their first appearance."""
        return tuple(dict.fromkeys(cell for cell in self.cells if cell is not None))

    @property
    def full(self) -> bool:
        """Whether no value is missing."""
        return None not in self.cells

    @property
    def floats(self) -> NDArray[np.float64]:
        """The number of each row; NaN where there is none."""
        return np.array([float(c) if c is not None and _number(c) else np.nan for c in self.cells], dtype=np.float64)

    @property
    def numbers(self) -> list[float]:
        """Its values as numbers."""
        return [float(cell) for cell in self.values if _number(cell)]


@dataclass(frozen=True)
class File:
    """A file of samples, as far as it was looked at."""

    path: str
    format: Format
    columns: tuple[Column, ...]
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()  # npz: arrays with more than one value per sample, by name
    whole: bool = True  # whether every row was looked at
    lines: tuple[int, ...] = ()  # csv: where each row ends

    @property
    def rows(self) -> int:
        """How many rows were looked at."""
        return len(self.columns[0].cells) if self.columns else 0

    def row(self, number: int) -> str:
        """What errors call a row."""
        return f"line {self.lines[number]}" if self.lines else f"row {number} (the first is 0)"

    def column(self, name: str, option: str) -> Column:
        """A column by the name that a user gave."""
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(column.name for column in self.columns)
        raise CoterieError(f"{option}: {self.path} has no '{name}'; it has {known}", code="data-column-unknown")


def look(path: str) -> File:
    """What is in a file."""
    file = file_at(path)
    form = ENDINGS.get(file.suffix.lower())
    if form is None:
        raise CoterieError(
            f"{path}: expected a table or arrays, one row per sample: .csv, .parquet or .npz", code="data-file-format"
        )
    with reading(file):
        if form == "npz":
            return _npz(path, file)
        header, rows, lines = _csv(file, path) if form == "csv" else _parquet(file)
    if not rows:
        raise CoterieError(f"{path}: has no rows; a header, then one row per sample, is expected", code="data-empty")
    cells = zip(*rows[:ROWS], strict=True)
    columns = tuple(Column.of(name, column) for name, column in zip(header, cells, strict=True))
    return File(path, form, columns, whole=len(rows) <= ROWS, lines=tuple(lines))


def _csv(file: Path, path: str) -> tuple[Sequence[str], list[Sequence[str]], list[int]]:
    with opened_csv(file, path) as (header, numbered):
        found = list(islice(numbered, ROWS + 1))
        return header, [row for _, row in found], [line for line, _ in found]


def _parquet(file: Path) -> tuple[Sequence[str], list[Sequence[str]], list[int]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise CoterieError(
            f"{file}: parquet needs pyarrow; pip install 'coterie[parquet]'", code="extra-missing"
        ) from None
    with parquet.ParquetFile(file) as opened:
        batch = next(opened.iter_batches(ROWS + 1), None)
        names = opened.schema_arrow.names
    columns = [] if batch is None else [[as_cell(value) for value in column.to_pylist()] for column in batch.columns]
    return names, list(zip(*columns, strict=True)), []


def _npz(path: str, file: Path) -> File:
    columns, inputs = [], []
    with zipfile.ZipFile(file) as archive:
        for entry in archive.namelist():
            name = entry.removesuffix(".npy")
            array = read_member(file, archive, name, LARGEST)
            if array.ndim > 1:
                inputs.append((name, tuple(array.shape[1:])))
            elif array.ndim == 1:
                texts = array.astype(str) if array.dtype.kind == "S" else array
                columns.append(Column.of(name, [as_cell(value) for value in texts[:ROWS].tolist()]))
    return File(path, "npz", tuple(columns), tuple(inputs))


def _number(cell: str) -> bool:
    try:
        return float(cell) == float(cell) and abs(float(cell)) != float("inf")
    except ValueError:
        return False
