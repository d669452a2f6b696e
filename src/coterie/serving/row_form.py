"""The form that new rows must have for a run: its columns, its scale, its classes, checked as when it was trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.model import channels_last
from coterie.core.settings import Kind
from coterie.core.tables import NamesData
from coterie.data.cells import as_cell, category, number_cells, number_in, one_column
from coterie.data.columns import TableScale
from coterie.data.federation import Domain, Federation, Ragged
from coterie.data.scale import Scale
from coterie.data.table import Channels, Chunk, Rows, known_name
from coterie.data.table import inputs as stored_array
from coterie.network.registry import ClientRegistry
from coterie.training.config import read_file
from coterie.training.data_record import DataRecord
from coterie.training.result import Result

READERS = ("csv", "parquet", "npz")


@dataclass(frozen=True)
class RunColumns:
    """What the configuration of a run says about the columns of its data."""

    y: str = "y"
    client: str | None = None
    split: str | None = None
    x: str = "x"  # the array of an npz file
    words: bool = False
    channels: Channels | None = None

    @staticmethod
    def of(result: Result[Any]) -> RunColumns:
        """As its config.yaml has it; the usual names for a run made in Python."""
        file = None if result.run_dir is None else Path(result.run_dir) / "config.yaml"
        said = read_file(file).get("data", {}) if file is not None and file.is_file() else {}
        if not isinstance(said, dict) or said.get("name") not in READERS:
            return RunColumns()
        x = said.get("x")
        return RunColumns(
            *(str(said.get("y", "y")), said.get("client"), said.get("split")),
            *(x if isinstance(x, str) else "x", bool(said.get("words", False)), said.get("channels")),
        )


@dataclass(frozen=True)
class Roles:
    """The columns of new rows that are no inputs; None: they have none."""

    y: str | None
    client: str | None
    split: str | None

    @property
    def names(self) -> list[str]:
        """Those that there are."""
        return [name for name in (self.y, self.client, self.split) if name is not None]


@dataclass(frozen=True, eq=False)
class RowForm:
    """The form of a run's data."""

    kind: Kind
    outputs: int
    input_shape: tuple[int, ...]
    features: tuple[str, ...] | None  # the columns of a table that are inputs
    class_names: tuple[str, ...] | None
    scale: Scale | None
    columns: RunColumns

    @staticmethod
    def of(result: Result[Any]) -> RowForm:
        """Of a run, with or without its training data."""
        known, columns = result.known, RunColumns.of(result)
        named = known if isinstance(known, NamesData) else None
        classes = None if named is None else named.class_names
        if isinstance(known, Federation | DataRecord):
            scale, *others = known.scales
            if others:
                raise CoterieError(
                    "the training data was scaled in several ways, so new rows of a table cannot be scaled alike; "
                    "give a Federation to result.admit",
                    code="result-ambiguous",
                )
            features = scale.names if isinstance(scale, TableScale) else known.features
            return RowForm(known.kind, known.outputs, known.input_shape, features, classes, scale, columns)
        assert isinstance(known, ClientRegistry)  # over a network clients scale their own data
        assert known.shape is not None
        shape = known.shape
        return RowForm(shape.kind, shape.outputs, shape.input_shape, known.features, classes, Scale(), columns)

    def roles(self, rows: Rows, y: str | None, client: str | None) -> Roles:
        """Which columns have labels, clients and splits: as given, as the run has them, or by their usual names."""
        here, taken = rows.names, set(self.features or ())
        usual = {"y": self.columns.y, "client": self.columns.client, "split": self.columns.split}
        found: dict[str, str | None] = {}
        for key, given in (("y", y), ("client", client), ("split", None)):
            if given is not None:
                found[key] = known_name(key, given, here, rows.title)
                continue
            name = usual[key] or key
            found[key] = name if name in here and name not in taken else None
        return Roles(found["y"], found["client"], found["split"])

    def inputs_of(self, rows: Rows, roles: Roles) -> tuple[str, ...]:
        """The columns to read: those the model was trained on, or, where they have no names, all others."""
        wanted = self.features or tuple(name for name in rows.names if name not in roles.names)
        for name in wanted if getattr(rows, "x", None) is None else ():
            one_column(dict.fromkeys(rows.names, ()), name, wanted, rows.title)
        return wanted

    def stored(self, chunk: Chunk, wanted: Sequence[str], title: str) -> Tensor:
        """The inputs of these rows as the training data is stored; errors name the column and the row."""
        if isinstance(self.scale, TableScale):
            return self.scale.stored(chunk.columns if chunk.x is None else chunk.x, title, chunk.row)
        if chunk.x is not None:
            words = self.columns.words or self.scale is None
            one_channel = (1, *chunk.x.shape[1:]) == self.input_shape and chunk.x.ndim > 1
            x = chunk.x[:, None] if one_channel else chunk.x
            found, _ = stored_array(x, title, words=words, channels=None if one_channel else self.columns.channels)
        else:
            found = torch.from_numpy(np.stack([self._numbers(chunk, name, title) for name in wanted], 1))
            found = found.to(torch.get_default_dtype())
        if tuple(found.shape[1:]) != self.input_shape:
            raise CoterieError(
                f"{title}: the inputs have the shape {tuple(found.shape[1:])}, the model takes {self.input_shape}",
                code="data-shape",
            )
        bad = ~found.reshape(len(found), -1).isfinite().all(1)
        if bool(bad.any()):
            where = chunk.row(int(bad.nonzero()[0]))
            raise CoterieError(f"{title}, {where}: NaN or Inf in the inputs; clean or drop it", code="data-not-finite")
        return found

    def _numbers(self, chunk: Chunk, name: str, title: str) -> NDArray[np.float64]:
        numbers, bad = number_cells(chunk.columns[name])
        if bad is not None:
            raise CoterieError(
                f"{title}: column '{name}', {chunk.row(bad[0])}: {bad[1]!r} is not a number", code="data-cell"
            )
        holes = np.flatnonzero(np.isnan(numbers))
        if len(holes):
            raise CoterieError(
                f"{title}: column '{name}', {chunk.row(int(holes[0]))}: the value is missing, and the model was "
                "trained without missing values; fill it in or leave the row out",
                code="data-cell",
            )
        return numbers

    def labels(self, chunk: Chunk, name: str | None, title: str, *, required: bool) -> NDArray[np.float64]:
        """Labels or targets (rows, targets) as numbers; NaN where there is none and none is required."""
        many = self.outputs if self.kind == "regression" else 1
        if name is None:
            return np.full((len(chunk), many), np.nan)
        values = chunk.columns[name]
        if values.ndim > 1:  # several targets, of an npz file
            found = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
        else:
            read = self._class_of if self.kind == "classification" else self._target_of
            refuse = _refusal(f"{title}, column '{name}'", chunk.row)
            found = np.array([read(value, i, refuse, required) for i, value in enumerate(values.tolist())])[:, None]
        if found.shape[1] != many:
            raise CoterieError(f"{title}: {found.shape[1]} targets, the model has {many}", code="data-shape")
        return found

    def _class_of(self, value: Any, row: int, refuse: Callable[[int, str], CoterieError], required: bool) -> float:
        cell = as_cell(value)
        if not cell or category(cell, self.class_names or ()) is None:
            if required:
                raise refuse(row, "the label is missing; fill it in or drop the row")
            return np.nan
        if self.class_names is not None:
            if cell not in self.class_names:
                raise refuse(row, f"it was trained on the classes {', '.join(self.class_names)}, not on '{cell}'")
            return float(self.class_names.index(cell))
        number = float(value) if isinstance(value, bool | int) else number_in(cell)
        if not (number % 1 == 0 and 0 <= number < self.outputs):
            raise refuse(row, f"'{cell}' is none of the classes 0..{self.outputs - 1} it was trained on")
        return number

    def _target_of(self, value: Any, row: int, refuse: Callable[[int, str], CoterieError], required: bool) -> float:
        cell = as_cell(value)
        if category(cell) is None:
            if required:
                raise refuse(row, "the target is missing; fill it in or drop the row")
            return np.nan
        number = number_in(cell)
        if not np.isfinite(number):
            raise refuse(row, f"'{cell}' is no finite number, and targets are")
        return number

    def clients(self, chunk: Chunk, name: str, title: str) -> list[str]:
        """The client of each row."""
        refuse = _refusal(f"{title}, column '{name}'", chunk.row)
        cells = [as_cell(value) for value in chunk.columns[name].tolist()]
        if "" in cells:
            raise refuse(cells.index(""), "the client is missing; fill it in or drop the row")
        return cells

    def scaled(self, stored: Tensor) -> Tensor:
        """Stored inputs as a network takes them."""
        x = channels_last(stored)
        return x if self.scale is None else self.scale(x)

    def federation(self, x: Tensor, y: NDArray[np.float64], test: NDArray[np.bool_] | None, name: str) -> Federation:
        """One client with these stored rows. test: the rows that it is scored on; None: all, as it is placed by all."""
        labels = torch.from_numpy(y.astype(np.int64)[:, 0] if self.kind == "classification" else y)
        labels = labels if self.kind == "classification" else labels.to(torch.get_default_dtype())
        rows = np.arange(len(y))
        split = (rows, rows) if test is None else (rows[~test], rows[test])
        named = None if isinstance(self.scale, TableScale) else self.features
        return Federation(
            (Domain(x, labels, self.scale),),
            Ragged.of([split[0]]),
            Ragged.of([split[1]]),
            kind=self.kind,
            outputs=self.outputs,
            names=(name,),
            features=named,
            class_names=self.class_names,
        )


def no_client_column(rows: Rows, form: RowForm, instead: str) -> CoterieError:
    """Nothing says whose the rows are: taken for one client's, those of many would be mixed up."""
    return CoterieError(
        f"{rows.title}: has no column '{form.columns.client or 'client'}' that says whose the rows are; name it "
        f"(--client-column COLUMN), or {instead}",
        code="data-column-unknown",
    )


def _refusal(title: str, row: Callable[[int], str]) -> Callable[[int, str], CoterieError]:
    return lambda i, fault: CoterieError(f"{title}, {row(i)}: {fault}", code="data-cell")
