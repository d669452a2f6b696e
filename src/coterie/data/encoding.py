"""How the columns of a table become inputs: missing values filled in, categories as one input for each value.

A column of text is stored as hashed words already, so many numbers in a row, which are inputs as they are.

Everything is measured on training rows only, and is kept with the run, so that new rows are encoded alike.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.data.cells import number_cells, text_cells
from coterie.data.frames import column_names, one_column, positional, same_length
from coterie.data.hashed_texts import hashed
from coterie.data.scale import Scale

SHOWN = 6  # values in a warning
ROWS = 1024  # samples that are measured at a time
NUMBER, INDICATOR = -1, -2  # what an input is, where it is not the code of a category


@dataclass(frozen=True)
class StoredColumn:
    """A column as it is stored: numbers, or the codes of categories; NaN where the value is missing."""

    name: str
    values: tuple[str, ...] | None = None  # what the codes stand for; None: the column has numbers
    given: int = 0  # so many of the values were given: these have inputs, whether or not a training row has them
    fill: float | None = None  # what was given for a missing number
    words: int = 0  # text: stored as so many numbers, of its hashed words

    @property
    def width(self) -> int:
        """How many stored numbers it has."""
        return self.words or 1


@dataclass(frozen=True)
class InputColumn:
    """A column and its inputs, as measured on training rows."""

    name: str
    values: tuple[str, ...] | None = None  # one input for each; None: one input, the number
    fill: float | None = None  # what a missing number becomes; None: it is refused
    indicator: bool = False  # one more input: 1 where the value is missing
    fills: bool = True  # whether a missing value is accepted
    unseen: tuple[str, ...] = ()  # other values of the table, with the codes after these; they have no input
    words: int = 0  # text: so many inputs, of its hashed words

    @property
    def width(self) -> int:
        """How many stored numbers it has."""
        return self.words or 1

    @property
    def inputs(self) -> tuple[str, ...]:
        """What its inputs are called."""
        if self.words:
            return tuple(f"{self.name} words {place}" for place in range(self.words))
        named = (self.name,) if self.values is None else tuple(f"{self.name}={value}" for value in self.values)
        return (*named, *((f"{self.name} missing",) if self.indicator else ()))


@dataclass(frozen=True)
class TablePlan:
    """The columns of a table and what is to be measured once it is known which rows are for training."""

    columns: tuple[StoredColumn, ...]
    fills: bool = True  # missing values are filled in; False: there must be none
    standardise: bool = True  # numbers to mean 0 and deviation 1

    def fit(self, x: Tensor, train: Tensor) -> tuple[TableScale, Tensor]:
        """The encoding that the training rows give, and the table with the codes of categories as it numbers them."""
        seen = x[train]
        columns, means, stds, coded, place = [], [], [], x, -1
        for stored in self.columns:
            place += 1
            if stored.words:
                columns.append(InputColumn(stored.name, words=stored.words))
                means += [0.0] * stored.words
                stds += [1.0] * stored.words
                place += stored.words - 1
                continue
            column, mean, std = self._measured(stored, seen[:, place])
            if stored.values is not None and column.values != stored.values:
                coded = x.clone() if coded is x else coded
                coded[:, place] = _renumbered(x[:, place], stored.values, column)
            columns.append(column)
            means += [mean, *[0.0] * (len(column.inputs) - 1)]
            stds += [std, *[1.0] * (len(column.inputs) - 1)]
        kind = torch.get_default_dtype()
        return TableScale(
            1.0, torch.tensor(means, dtype=kind), torch.tensor(stds, dtype=kind), None, tuple(columns)
        ), coded

    def _measured(self, stored: StoredColumn, seen: Tensor) -> tuple[InputColumn, float, float]:
        """A column as its training values (n,) show it, and the mean and deviation of its first input."""
        here = seen[~seen.isnan()]
        if stored.values is not None:
            codes = range(stored.given) if stored.given else here.unique().long().tolist()
            found = tuple(stored.values[code] for code in codes)
            if not found:
                raise CoterieError(
                    f"data: column '{stored.name}' has no value in any training row; leave it out: "
                    f"data.leave_out=[{stored.name}]",
                    code="data-column-invalid",
                )
            indicator = self.fills and not stored.given and len(here) < len(seen)
            unseen = tuple(value for value in stored.values if value not in found)
            return InputColumn(stored.name, found, None, indicator, self.fills, unseen), 0.0, 1.0
        std, mean = torch.std_mean(here.double(), correction=0) if len(here) else (torch.ones(()), torch.zeros(()))
        constant = not len(here) or bool(here.min() == here.max())  # by rounding, its deviation need not be 0
        fill = (stored.fill if stored.fill is not None else float(mean)) if self.fills else None
        indicator = stored.fill is not None or (self.fills and len(here) < len(seen))
        column = InputColumn(stored.name, None, fill, indicator, self.fills)
        return (column, float(mean), 1.0 if constant else float(std)) if self.standardise else (column, 0.0, 1.0)


@dataclass(frozen=True, eq=False)
class TableScale(Scale):
    """How the stored columns of a table become inputs: holes are filled in and marked, categories get one input for
    each value that a training row has (a value that none has is all zeros), and numbers are scaled."""

    columns: tuple[InputColumn, ...] = ()

    def __call__(self, x: Tensor | ArrayLike) -> Tensor:
        """Inputs of stored columns (a tensor), or of new rows as they are (a table, rows of values)."""
        stored = x if isinstance(x, Tensor) else self.stored(x, "scale")
        source, code, fill = self._layout
        wide = stored.to(torch.get_default_dtype())[:, source]
        hole = wide.isnan()
        number = torch.where(hole, fill, wide)
        flags = torch.where(code == INDICATOR, hole, wide == code)
        return torch.where(code == NUMBER, number, flags.to(wide.dtype)).sub_(self.mean).div_(self.std)

    @cached_property
    def _layout(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of each input: its column, what it is, and what fills a hole."""
        source: list[int] = []
        code: list[int] = []
        fill: list[float] = []
        place = 0
        for column in self.columns:
            codes = [NUMBER] * column.width if column.values is None else list(range(len(column.values)))
            codes += [INDICATOR] if column.indicator else []
            source += range(place, place + column.words) if column.words else [place] * len(codes)
            code += codes
            fill += [float("nan") if column.fill is None else column.fill] * len(codes)
            place += column.width
        return torch.tensor(source), torch.tensor(code), torch.tensor(fill, dtype=torch.get_default_dtype())

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the inputs are called."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def names(self) -> tuple[str, ...]:
        """What the columns are called."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def filled(self) -> Tensor:
        """Of each stored number whether it is filled in where it is missing."""
        return torch.tensor([column.fills for column in self.columns for _ in range(column.width)])

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of text, whose words are hashed."""
        return tuple(column.name for column in self.columns if column.words)

    @property
    def uniform(self) -> bool:
        """Columns differ."""
        return False

    @property
    def plain(self) -> bool:
        """Never."""
        return False

    def bytes(self) -> bytes:
        """What it does, for a checksum."""
        said = [[c.name, c.values, c.fill, c.indicator, c.fills, *([c.words] if c.words else [])] for c in self.columns]
        return super().bytes() + json.dumps(said).encode()

    def stored(self, x: Any, where: str, row: Callable[[int], str] = "row {}".format) -> Tensor:
        """New rows as they are stored: a table, whose columns are found by name, or rows with all columns in order.

        where, row: what errors call the table and its rows.
        """
        table = x if column_names(x) is not None else positional(x, self.names, where)
        found = [
            self._stored(column, one_column(table, column.name, self.names, where), where, row)
            for column in self.columns
        ]
        same_length(found, self.names, where)
        wide = [values.reshape(len(values), column.width) for column, values in zip(self.columns, found, strict=True)]
        return torch.from_numpy(np.concatenate(wide, 1).astype(np.float32))

    def _stored(
        self, column: InputColumn, values: NDArray[Any], where: str, row: Callable[[int], str]
    ) -> NDArray[np.float64]:
        if column.words:
            return hashed([text or "" for text in text_cells(values, na=True)], column.words).double().numpy()
        if column.values is None:
            numbers, bad = number_cells(values)
            if bad is not None:
                raise CoterieError(
                    f"{where}: column '{column.name}', {row(bad[0])}: {bad[1]!r} is not a number", code="data-cell"
                )
        else:
            places = {value: place for place, value in enumerate(column.values)}
            cells = text_cells(values, places)  # of a run that took NA for a value, it is one
            _warn_of_unseen(column, sorted({cell for cell in cells if cell is not None and cell not in places}), where)
            numbers = np.array([np.nan if t is None else places.get(t, -1) for t in cells], dtype=np.float64)
        holes = np.flatnonzero(np.isnan(numbers))
        if len(holes) and not column.fills:
            raise CoterieError(
                f"{where}: column '{column.name}', {row(int(holes[0]))}: the value is missing, and the model was "
                "trained without missing values; fill it in or leave the row out",
                code="data-cell",
            )
        return numbers

    def recoded(self, x: Tensor, theirs: Scale | None, names: Sequence[str], where: str) -> Tensor:
        """Another table's stored columns as this one stores them; `names` are those of its columns."""
        old = {column.name: column for column in theirs.columns} if isinstance(theirs, TableScale) else {}
        widths = [old[name].width if name in old else 1 for name in names]
        if x.ndim != 2 or x.shape[1] != sum(widths):
            raise CoterieError(
                f"{where}: expected rows of {len(names)} values ({', '.join(names)}); got shape {tuple(x.shape)}",
                code="data-shape",
            )
        table: dict[str, NDArray[Any]] = {}
        blocks = dict(zip(names, x.split(widths, 1), strict=True))
        for name, block in blocks.items():
            values = block[:, 0].double().numpy()
            if name in old and old[name].values is not None:
                known = (*(old[name].values or ()), *old[name].unseen)
                texts = [None if np.isnan(v) else known[int(v)] for v in values.tolist()]
                values = np.array(texts, dtype=object)
            table[name] = values
        found = list(self.stored(table, where).split([column.width for column in self.columns], 1))
        for place, column in enumerate(self.columns):
            if column.words:
                if column.name not in old or old[column.name].words != column.words:
                    raise CoterieError(
                        f"{where}: column '{column.name}' is text, hashed to {column.words} numbers; read it with "
                        f"text={column.name} and size={column.words}, or give DataFrames: result.admit([(frame, y)])",
                        code="data-column-invalid",
                    )
                found[place] = blocks[column.name].to(found[place].dtype)
        return torch.cat(found, 1)


def _warn_of_unseen(column: InputColumn, unseen: Sequence[str], where: str) -> None:
    if unseen:
        known = ", ".join((column.values or ())[:SHOWN])
        warnings.warn(
            f"{where}: column '{column.name}': '{unseen[0]}' is in no training row ({known}); its inputs are all 0",
            CoterieWarning,
            stacklevel=2,
        )


def _renumbered(codes: Tensor, old: tuple[str, ...], column: InputColumn) -> Tensor:
    places = {value: place for place, value in enumerate((*(column.values or ()), *column.unseen))}
    lookup = torch.tensor([places[value] for value in old], dtype=codes.dtype)
    return torch.where(codes.isnan(), codes, lookup[codes.nan_to_num(0).long()])


# --------------------------------------------------------------------------------- inputs and targets of one size


@dataclass(frozen=True, eq=False)
class Preparation:
    """What is measured on the training samples of a federation, and of which numbers: kept, to be measured again
    where it turns out that fewer of them are trained on."""

    stored: tuple[Tensor, ...]  # the inputs of each domain, as they were before they were prepared
    inputs: bool = False  # to mean 0 and deviation 1
    targets: bool = False  # likewise
    plan: TablePlan | None = None  # how columns with holes or categories become inputs


def standard_scale(x: Tensor, divisor: float = 1.0) -> Scale:
    """To mean 0 and deviation 1, as measured on these samples: of each number of a vector, of each channel of images
    and sequences. What is constant becomes 0."""
    if not len(x):
        return Scale(divisor)
    dtype = torch.get_default_dtype()
    if x.ndim <= 2:
        std, mean = torch.std_mean(x.double(), 0, correction=0)
        constant = x.amin(0) == x.amax(0)  # by rounding, its deviation need not be 0
    else:
        axes, count = [0, *range(2, x.ndim)], x[:, 0].numel()
        parts = x.split(ROWS)  # as doubles all of them would need many times their room
        total = torch.stack([part.double().sum(axes) for part in parts]).sum(0)
        mean = total / count
        shape = (-1, *[1] * (x.ndim - 2))
        squares = [(part.double() - mean.view(shape)).square().sum(axes) for part in parts]
        std = (torch.stack(squares).sum(0) / count).sqrt()
        low, high = x.amin(axes), x.amax(axes)
        constant, mean, std = (value.view(shape) for value in (low == high, mean, std))
    return Scale(divisor, (mean / divisor).to(dtype), torch.where(constant, 1.0, std / divisor).to(dtype))


def to_be_standardised(x: Tensor, scale: Scale | None) -> bool:
    """Whether inputs without names are brought to mean 0 and deviation 1 if nobody says so.

    Images are not (bytes, and whatever lies in [0, 1]), nor whole numbers, which may be those of words.
    """
    if scale is None or not x.is_floating_point() or not x.numel():
        return False
    low, high = (float(value) for value in x.aminmax())
    return not (low >= 0 and high <= 1)


def targets_to_be_standardised(y: Tensor) -> bool:
    """Whether targets are brought to mean 0 and deviation 1 if nobody says so: amounts are, not labels that came as
    floats (several labels of a sample, the words of a text)."""
    if not y.is_floating_point() or not y.numel():
        return False
    whole = bool((y % 1 == 0).all())
    labels = whole and (y.reshape(len(y), -1).shape[1] > 1 or bool(((y == 0) | (y == 1)).all()))
    return not labels


Standardise: TypeAlias = bool | Literal["auto"]
