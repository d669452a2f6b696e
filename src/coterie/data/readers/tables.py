"""A user's own csv and parquet files, one row per sample."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pydantic import PositiveInt

from coterie.core.errors import CoterieError
from coterie.core.settings import STRICT, dataclass
from coterie.data.cells import as_cell, number_in
from coterie.data.readers.checks import LARGEST, check_inflated
from coterie.data.readers.table import Read
from coterie.data.readers.table import Table as Table

CHUNK = 50_000  # rows of a csv file that are held as text at a time


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
        while chunk := list(islice(every, CHUNK)):
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
