"""A user's own table in memory (pandas, polars, pyarrow, a dict of columns), one row per sample."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.settings import Kind, explained_call
from coterie.data.cells import is_hole
from coterie.data.column_reader import ColumnReader
from coterie.data.dataset import Dataset
from coterie.data.frames import column_names, one_column, same_length
from coterie.data.readers.table import Read, Table
from coterie.data.table_columns import Categories, Missing, NotAvailable, only_prose


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
    readers = _read(table, features, columns)
    if x is None and not text and (prose := only_prose(readers, table.rules)):
        table = replace(table, text=prose)
        readers = _read(table, features, columns)
    data = table.dataset(
        Read(readers, {other: _listed(columns[other]) for other in others}, "row {} (the first is 0)".format), name
    )
    if data.left_out:
        warnings.warn(f"data: {name}: {data.remarks[0]}", CoterieWarning, stacklevel=3)
    return data


def _read(table: Table, features: Sequence[str], columns: Mapping[str, NDArray[Any]]) -> list[ColumnReader]:
    readers = [table.rules.reader(name) for name in features]
    for reader in readers:
        reader.add_values(columns[reader.name])
    return readers


def _listed(column: NDArray[Any]) -> list[Any]:
    """The values as Python has them, None where one is missing."""
    values = column.astype("datetime64[us]") if column.dtype.kind == "M" else column
    return [None if is_hole(value) and not isinstance(value, float) else value for value in values.tolist()]
