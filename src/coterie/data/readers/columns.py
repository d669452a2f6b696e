"""What all ways to bring own data share: how a column of values becomes inputs, labels, clients or a split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass as plain
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.errors import CoterieError, suggest
from coterie.core.files import user_path
from coterie.core.settings import Kind
from coterie.data.cells import is_hole, number_in, time_in
from coterie.data.labels import refuse_vectors, warn_of_amounts, warn_of_no_zero
from coterie.data.scale import Scale

Channels: TypeAlias = Literal["first", "last"]
IS_TEST = {"train": False, "val": False, "validation": False, "0": False, "false": False}
IS_TEST |= {"test": True, "1": True, "true": True}
IS_TEST_OF_THREE = IS_TEST | {"1": False, "2": True}  # where numbers stand for train, val and test


@plain(frozen=True, eq=False)
class Column:
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


def outcome(column: Column, task: Kind | None = None, classes: int | None = None) -> tuple[Tensor, int]:
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


def class_names(column: Column) -> tuple[str, ...] | None:
    """The names of the classes, in the order in which `outcome` numbers them; None where they are numbers."""
    y = np.asarray(column.values)
    y = np.array(column.full()) if y.dtype.kind in "OUS" else y
    return tuple(map(str, np.unique(y))) if y.dtype.kind == "U" else None


def owners(column: Column) -> tuple[NDArray[np.int64], tuple[str, ...]]:
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


def groups_of(
    column: Column, client: NDArray[np.int64] | None, names: tuple[str, ...] | None
) -> tuple[str | None, ...]:
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


def official(column: Column) -> NDArray[np.bool_] | None:
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


def validation(column: Column) -> NDArray[np.bool_] | None:
    """Which samples are marked for validation; None if none is."""
    words = [str(value).strip().lower() for value in column.full()]
    marks = ("val", "validation", "1") if "2" in words else ("val", "validation")
    flags = np.array([word in marks for word in words])
    return flags if flags.any() else None


def times(column: Column) -> NDArray[np.float64]:
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
