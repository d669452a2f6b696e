"""What csv files, parquet files and tables in memory have in common: named columns, one row per sample."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass as plain
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.settings import STRICT, Kind, dataclass
from coterie.core.text import counted
from coterie.data.cells import as_cell, category
from coterie.data.column_reader import ColumnReader
from coterie.data.dataset import Dataset
from coterie.data.readers.checks import reading
from coterie.data.readers.columns import (
    Column,
    as_stored,
    class_names,
    file_at,
    groups_of,
    known_name,
    official,
    outcome,
    owners,
    times,
    validation,
)
from coterie.data.scale import Scale
from coterie.data.table_columns import (
    Categories,
    ChosenColumns,
    ColumnRules,
    Missing,
    Names,
    NotAvailable,
    choose,
    only_prose,
)

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
            key: Column(
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
        self, chosen: ChosenColumns, values: NDArray[np.float32], columns: dict[str, Column], name: str
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


def _typed(cells: Sequence[str]) -> NDArray[Any]:
    """Text as whole numbers if all are, else as numbers if all are, else as it is."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(cells).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(cells)
