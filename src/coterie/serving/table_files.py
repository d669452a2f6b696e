"""Tables written row by row to a csv or parquet file, which appears whole or not at all."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from coterie.core.errors import CoterieError
from coterie.core.files import replace_durably, writing
from coterie.core.text import cell

BUFFERED = 5_000  # rows of a parquet file that are written as one group, at least


class TableWriter(Protocol):
    """A table that grows."""

    def add(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """More rows, column by column; None is an empty cell."""


@contextmanager
def open_table(path: Path, kinds: Mapping[str, type]) -> Iterator[TableWriter]:
    """A writer of a table with these columns; the file is there once the block has ended without an error.

    kinds: str, int, float or bool, by column.
    """
    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet", ".pq"):
        raise CoterieError(f"{path}: name a .csv or a .parquet file", code="option-invalid")
    part = path.with_name(f"{path.name}.part")
    try:
        with writing(path, "make room, or choose another file"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(_Csv(part, kinds) if ending == ".csv" else _Parquet(part, kinds)) as writer:
                yield writer
                writer.flush()
            replace_durably(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


class _Csv:
    def __init__(self, path: Path, kinds: Mapping[str, type]) -> None:
        self._file, self._names = path.open("w", encoding="utf-8", newline=""), tuple(kinds)
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(map(cell, self._names))

    def add(self, columns: Mapping[str, Sequence[Any]]) -> None:
        cells = [[_cell(value) for value in columns[name]] for name in self._names]
        self._writer.writerows(zip(*cells, strict=True))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, kinds: Mapping[str, type]) -> None:
        try:
            import pyarrow as arrow
            from pyarrow import parquet
        except ImportError:
            raise CoterieError(
                f"{path.name}: a parquet file needs pyarrow; pip install 'coterie[parquet]', or write a csv file",
                code="extra-missing",
            ) from None
        types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
        self._schema = arrow.schema([(name, types[kind]) for name, kind in kinds.items()])
        self._arrow, self._writer = arrow, parquet.ParquetWriter(path, self._schema)
        self._held: dict[str, list[Any]] = {name: [] for name in kinds}

    def add(self, columns: Mapping[str, Sequence[Any]]) -> None:
        for name, held in self._held.items():
            held.extend(columns[name])
        if len(next(iter(self._held.values()))) >= BUFFERED:
            self.flush()

    def flush(self) -> None:
        self._writer.write_table(self._arrow.table(self._held, self._schema))
        for values in self._held.values():
            values.clear()

    def close(self) -> None:
        self._writer.close()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return cell(value)
    return "" if value is None else repr(value) if isinstance(value, float) else value
