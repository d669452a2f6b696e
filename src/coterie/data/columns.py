"""The columns of a table: what each turns out to have, which of them are inputs, and how these become numbers.

The same rules for csv, parquet and tables in memory. Missing values are filled in, categories become one input for
each value, text becomes hashed words. Everything is measured on training rows only, and is kept with the run, so
that new rows are encoded alike.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass as plain
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import BeforeValidator, StrictInt
from torch import Tensor

from coterie.core.errors import CoterieError, CoterieWarning, suggest
from coterie.core.settings import STRICT, dataclass
from coterie.data.cells import (
    BOOLEANS,
    DECIMAL_COMMA,
    MISSING_NUMBER,
    Bad,
    as_cell,
    category,
    column_names,
    finite,
    hashed,
    is_date,
    number_cells,
    one_column,
    parsed,
    positional,
    same_length,
    text_cells,
)
from coterie.data.scale import Scale

TEXTS = 1_000  # different texts of a column that are told apart
PROSE = 3  # words of a text on average, from which on it is more than a name

ColumnKind: TypeAlias = Literal["number", "boolean", "text", "date", "empty"]


class ColumnReader:
    """Takes the parts of a column one after the other. as_text: it has categories, also where they look like numbers.

    given: the values that it can have, in their order. na: whether NA and ? are values of a text.
    """

    def __init__(self, name: str, *, as_text: bool = False, given: Sequence[str] = (), na: bool = False) -> None:
        self.name, self.as_text, self.given, self.na = name, as_text, tuple(given), na
        self.rows = 0
        self.bad: Bad | None = None  # the first cell that is neither a number nor missing
        self._has_numbers = False
        self._numbers: list[NDArray[np.float32]] = []
        self._wide: list[NDArray[np.float64]] | None = []  # whole numbers, as long as none comes twice
        self._codes: list[NDArray[np.int64]] = []
        self._texts: dict[str, int] = {value: code for code, value in enumerate(self.given)}
        self.too_many = False  # more than TEXTS different ones

    def add_values(self, values: NDArray[Any]) -> None:
        """Values of a library's own column."""
        if values.dtype.kind in "biuf" and not self.as_text:
            wide = values.astype(np.float64)
            odd = np.flatnonzero(np.isnan(finite(wide)) & ~np.isnan(wide))
            self._add_numbers(wide, (int(odd[0]), str(values[odd[0]])) if len(odd) else None)
            self.rows += len(values)
            return
        if values.dtype.kind == "M":
            values = values.astype("datetime64[us]")
        self.add([as_cell(value) for value in values.tolist()])

    def add(self, cells: Sequence[str]) -> None:
        """Cells of text."""
        if not self.as_text:
            wide = parsed(cells)
            odd = np.flatnonzero(np.isnan(finite(wide))).tolist()
            other = next((row for row in odd if cells[row].strip().lower() not in MISSING_NUMBER), None)
            self._add_numbers(wide, None if other is None else (other, cells[other]))
        if self.as_text or not self._has_numbers:
            self._add_texts(cells)
        self.rows += len(cells)

    def _add_numbers(self, wide: NDArray[np.float64], bad: Bad | None) -> None:
        if self.bad is None and bad is not None:
            self.bad = (self.rows + bad[0], bad[1])
        self._numbers.append(finite(wide))
        self._has_numbers = self._has_numbers or not np.isnan(self._numbers[-1]).all()
        if self._wide is not None:
            whole = np.isfinite(wide).all() and bool((wide % 1 == 0).all()) and len(np.unique(wide)) == len(wide)
            self._wide = [*self._wide, wide] if whole else None

    def _add_texts(self, cells: Sequence[str]) -> None:
        codes = np.full(len(cells), -1, dtype=np.int64)
        for row, cell in enumerate(cells):
            value = category(cell.strip(), self.given, na=self.na)
            if value is not None and (value in self._texts or not self.too_many):
                codes[row] = self._texts.setdefault(value, len(self._texts))
                self.too_many = len(self._texts) > TEXTS and not self.given
        self._codes.append(codes)

    # ------------------------------------------------------------------------------------------------ what it has

    @property
    def kind(self) -> ColumnKind:
        """What the column has."""
        if self._has_numbers and not self.as_text:
            return "number"
        if not self._texts:
            return "empty"
        if self.as_text:
            return "text"
        if {text.lower() for text in self._texts} <= set(BOOLEANS):
            return "boolean"
        return "date" if all(map(is_date, self._texts)) else "text"

    @property
    def values(self) -> tuple[str, ...]:
        """The different texts: those that were given, then the others in order."""
        return (*self.given, *sorted(text for text in self._texts if text not in self.given))

    @property
    def first_text(self) -> Bad:
        """The first row that has a text, and the text."""
        codes = np.concatenate(self._codes)
        row = int(np.argmax(codes >= 0))
        return row, next(text for text, code in self._texts.items() if code == codes[row])

    @property
    def is_prose(self) -> bool:
        """Whether it has text of several words, that is hardly ever the same."""
        return self.has_words and 2 * len(self._texts) > min(self.rows, TEXTS)

    @property
    def has_words(self) -> bool:
        """Whether it has text of several words, which may come again."""
        words = [len(text.split()) for text in self._texts]
        return self.kind == "text" and sum(words) >= PROSE * len(words)

    @property
    def decimal_comma(self) -> str | None:
        """The first of its texts, if all of them look like numbers with a decimal comma."""
        if self.kind != "text" or self.as_text or not all(map(DECIMAL_COMMA.fullmatch, self._texts)):
            return None
        return self.first_text[1]

    @property
    def one_each(self) -> bool:
        """Whether every row has a whole number of its own."""
        if self.kind != "number" or self._wide is None or self.bad is not None:
            return False
        return len(np.unique(np.concatenate(self._wide))) == self.rows

    def stored(self) -> NDArray[np.float32]:
        """The column as it is stored: numbers, 0 and 1, or codes into `values`; NaN where it is missing."""
        if self.kind == "number":
            return np.concatenate(self._numbers)
        codes = np.concatenate(self._codes) if self._codes else np.full(self.rows, -1, dtype=np.int64)
        places = {value: place for place, value in enumerate(self.values)}
        new = [BOOLEANS[t.lower()] if self.kind == "boolean" else float(places[t]) for t in self._texts]
        return np.array([*new, np.nan], dtype=np.float32)[codes]


class TextReader(ColumnReader):
    """A column of text whose words are hashed: each row becomes `size` numbers, a missing text zeros."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(name)
        self.size = size
        self._hashed: list[NDArray[np.float16]] = []

    def add_values(self, values: NDArray[Any]) -> None:
        """Values of a library's own column."""
        self.add([as_cell(value) for value in values.tolist()])

    def add(self, cells: Sequence[str]) -> None:
        """Cells of text."""
        self._hashed.append(hashed([category(cell.strip(), na=True) or "" for cell in cells], self.size).numpy())
        self.rows += len(cells)

    def stored(self) -> NDArray[np.float32]:
        """The hashed words (rows, size)."""
        found = np.concatenate(self._hashed) if self._hashed else np.zeros((0, self.size), np.float16)
        return found.astype(np.float32)


SHOWN = 6  # values in a warning
AT_A_TIME = 1024  # samples that are measured at a time
NUMBER, INDICATOR = -1, -2  # what an input is, where it is not the code of a category


@plain(frozen=True)
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


@plain(frozen=True)
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


@plain(frozen=True)
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


@plain(frozen=True, eq=False)
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


@plain(frozen=True, eq=False)
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
        parts = x.split(AT_A_TIME)  # as doubles all of them would need many times their room
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


FEW = 50  # different values of a column of text that is taken for categories
ROWS = 50  # from so many on, a whole number of its own in every row looks like an identifier

Missing: TypeAlias = Literal["mean", "drop", "refuse"] | dict[str, float]
NotAvailable: TypeAlias = Literal["missing", "value"]
Categories: TypeAlias = Literal["auto", "none"] | tuple[str, ...] | dict[str, tuple[str | StrictInt, ...]]


def _as_names(given: Any) -> Any:
    return (given,) if isinstance(given, str) else given


Names: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_as_names)]  # or one name alone


@dataclass(frozen=True, config=STRICT)
class ColumnRules:
    """What a user says of the columns of a table."""

    missing: Missing = "mean"
    categories: Categories = "auto"
    leave_out: Names = ()
    asked: bool = False  # whether the columns were named one by one: then each must be of use
    text: Names = ()  # columns whose words are hashed
    size: int = 512  # numbers of a hashed text
    na: NotAvailable = "missing"  # what NA and ? are in a column of text

    def check(self, header: Sequence[str], features: Sequence[str], title: str) -> None:
        """Refuse names that are no columns, or not of inputs, and lists of values that make no sense."""
        named = self.categories if isinstance(self.categories, tuple | dict) else ()
        fills = self.missing if isinstance(self.missing, dict) else ()
        for key, names in (
            *(("leave_out", self.leave_out), ("categories", named), ("missing", fills), ("text", self.text)),
        ):
            for name in names:
                if name not in header:
                    raise CoterieError(
                        f"data.{key}: {title} has no '{name}'.{suggest(name, header)}", code="data-column-unknown"
                    )
                if key != "leave_out" and name not in features:
                    raise CoterieError(
                        f"data.{key}: {title}, column '{name}' is not an input; leave it out of {key}",
                        code="data-column-invalid",
                    )
        if both := [name for name in self.text if name in named or name in fills]:
            raise CoterieError(
                f"data.text: {title}, column '{both[0]}': its words are hashed, so it has neither categories nor a "
                "number where it is missing; leave it out of them, or out of text",
                code="data-column-invalid",
            )
        for name in named:
            if name in fills:
                raise CoterieError(
                    f"data.missing: {title}, column '{name}' has categories, which need no number where one is "
                    "missing; leave it out of missing",
                    code="data-column-invalid",
                )
            values = self.given(name)
            if isinstance(self.categories, dict) and (not values or len(set(values)) < len(values)):
                raise CoterieError(
                    f"data.categories: column '{name}' needs different values, at least one; given: "
                    f"{', '.join(values) or 'none'}",
                    code="data-column-invalid",
                )

    def given(self, name: str) -> tuple[str, ...]:
        """The values that were given for a column."""
        return tuple(map(str, self.categories.get(name, ()))) if isinstance(self.categories, dict) else ()

    def reader(self, name: str) -> ColumnReader:
        """What reads a column."""
        if name in self.text:
            return TextReader(name, self.size)
        named = isinstance(self.categories, tuple | dict) and name in self.categories
        return ColumnReader(name, as_text=named, given=self.given(name), na=self.na == "value")


@plain(frozen=True, eq=False)
class ChosenColumns:
    """The inputs of a table."""

    columns: tuple[StoredColumn, ...]
    x: NDArray[np.float32]  # (rows, columns, of which text is several), NaN where a value is missing
    keep: NDArray[np.bool_] | None  # (rows,) the rows that stay, where some are left out
    left_out: tuple[str, ...]
    remarks: tuple[str, ...]  # what to say of the columns
    fills: bool

    @property
    def names(self) -> tuple[str, ...]:
        """What the columns are called."""
        return tuple(column.name for column in self.columns)

    def plan(self, x: NDArray[np.float32], standardise: bool) -> TablePlan | None:
        """How the rows that stay become inputs; None: they are inputs as they are, for all of them are numbers."""
        plain = all(column.values is None and column.fill is None and not column.words for column in self.columns)
        return None if plain and not np.isnan(x).any() else TablePlan(self.columns, self.fills, standardise)


@plain(frozen=True)
class _Choosing:
    """What errors call a table and its rows, and what is to be done with its columns."""

    title: str
    row: Callable[[int], str]
    rules: ColumnRules

    def refuse(self, name: str, row: int, fault: str) -> CoterieError:
        return CoterieError(f"data: {self.title}, column '{name}', {self.row(row)}: {fault}", code="data-cell")


def choose(readers: Sequence[ColumnReader], rules: ColumnRules, title: str, row: Callable[[int], str]) -> ChosenColumns:
    """The inputs among the columns that were read; what is not obvious is said."""
    table = _Choosing(title, row, rules)
    found: list[tuple[StoredColumn, NDArray[np.float32]]] = []
    left: dict[str, str] = {}
    for reader in readers:
        reason = _checked(reader, table)
        if reason:
            left[reader.name] = reason
        else:
            found.append((_stored(reader, rules), reader.stored()))
    if not found:
        why = f" Left out: {_reasons(left)}." if left else ""
        raise CoterieError(
            f"data.x: {title} has no feature columns: no column but y, client, split has numbers or few different "
            f"values.{why}",
            code="data-column-unknown",
        )
    numbers = {column.name for column, _ in found if column.values is None and not column.words}
    if wrong := [name for name in (rules.missing if isinstance(rules.missing, dict) else ()) if name not in numbers]:
        raise CoterieError(
            f"data.missing: {title}, column '{wrong[0]}' has no numbers; leave it out of missing",
            code="data-column-invalid",
        )
    x = np.concatenate([values.reshape(len(values), column.width) for column, values in found], 1)
    columns = tuple(column for column, _ in found)
    _warn_of_commas(readers, left, title)
    _warn_of_identifiers([reader for reader in readers if reader.name not in left], title)
    keep = _without_holes(x, columns, table)
    remarks = [f"left out: {_reasons(left)}"] if left else []
    if said := [f"{c.name} ({listed(c.values[: c.given or None])})" for c in columns if c.values is not None]:
        remarks.append(f"categories: {', '.join(said)}")
    if texts := [f"{c.name} (its words, hashed to {c.words} numbers)" for c in columns if c.words]:
        remarks.append(f"text: {', '.join(texts)}")
    fills = rules.missing == "mean" or isinstance(rules.missing, dict)
    return ChosenColumns(columns, x, keep, tuple(left), tuple(remarks), fills)


def only_prose(readers: Sequence[ColumnReader], rules: ColumnRules) -> tuple[str, ...]:
    """The columns of prose, of a table that has nothing else to be an input."""
    if any(r.kind in ("number", "boolean") or not text_reason(r, rules) for r in readers):
        return ()
    prose = tuple(reader.name for reader in readers if reader.is_prose)
    return prose or tuple(reader.name for reader in readers if reader.has_words)


def _stored(reader: ColumnReader, rules: ColumnRules) -> StoredColumn:
    if isinstance(reader, TextReader):
        return StoredColumn(reader.name, words=reader.size)
    if reader.kind == "text":
        return StoredColumn(reader.name, reader.values, given=len(reader.given))
    fill = rules.missing.get(reader.name) if isinstance(rules.missing, dict) else None
    return StoredColumn(reader.name, fill=fill)


def _checked(reader: ColumnReader, table: _Choosing) -> str:
    """Why a column is not an input, empty if it is one; an error where it cannot be what was asked for."""
    name, kind = reader.name, reader.kind
    if isinstance(reader, TextReader):
        return ""
    if kind in ("number", "boolean"):
        if kind == "number" and reader.bad is not None:
            row, text = reader.bad
            if DECIMAL_COMMA.fullmatch(text.strip()):
                comma = f"{text[:80]!r} is no number; write it with a point, and with nothing between thousands (22.3)"
                raise table.refuse(name, row, comma)
            instead = f"correct it, or leave the column out: data.leave_out=[{name}] (data.categories=[{name}]: one "
            raise table.refuse(
                name, row, f"{text[:80]!r} is no number (1.5 is); {instead}input for each different value)"
            )
        return ""
    reason = text_reason(reader, table.rules)
    if reason and table.rules.asked:
        if kind == "empty":
            raise CoterieError(
                f"data.x: {table.title}, column '{name}' has no values; leave it out of x", code="data-column-invalid"
            )
        row, text = reader.first_text
        raise table.refuse(name, row, f"{text[:80]!r} is no number, and the column cannot be used otherwise: {reason}")
    if reason and reader.as_text:
        raise CoterieError(f"data.categories: {table.title}, column '{name}': {reason}", code="data-column-invalid")
    return reason


def text_reason(reader: ColumnReader, rules: ColumnRules) -> str:
    """Why a column that has no numbers is not an input."""
    name, many = reader.name, len(reader.values)
    if reader.kind == "empty":
        return "no values"
    if reader.kind == "date":
        return f"dates; data.time={name} tests on each client's latest rows"
    few = many <= FEW and 2 * many <= reader.rows
    if reader.decimal_comma is not None and not few:  # a few of them may be names all the same
        return f"looks like numbers with a decimal comma, such as '{reader.decimal_comma}'; write them with a point"
    if reader.is_prose and not reader.as_text:
        return f"text; data.text={name} uses its words"
    if reader.too_many:
        return f"text with more than {TEXTS:,} different values"
    if reader.as_text:
        return ""
    if rules.categories == "none" or isinstance(rules.categories, dict):
        return f"text with {many} different values that data.categories does not name"
    if not few:
        if reader.has_words:
            return f"text with {many} different values; data.text={name} uses its words"
        if many == reader.rows:
            return "text, different in every row"
        return f"text with {many} different values; data.categories=[{name}] uses it all the same"
    return f"text, always '{reader.values[0]}'" if many == 1 else ""


def _reasons(left: dict[str, str]) -> str:
    return ", ".join(f"{name} ({reason})" for name, reason in left.items())


def listed(values: Sequence[str]) -> str:
    """Values, or how many there are."""
    return ", ".join(values) if len(values) <= SHOWN else f"{len(values)} values"


def _warn_of_commas(readers: Sequence[ColumnReader], left: dict[str, str], title: str) -> None:
    for reader in readers:
        if reader.decimal_comma is not None:
            what = "is left out" if reader.name in left else "has categories"
            warnings.warn(
                f"data: {title}: column '{reader.name}' {what}: it looks like numbers with a decimal comma "
                f"('{reader.decimal_comma}'), and numbers have a point. Write 22.3 instead of 22,3 (pandas: "
                "read_csv(path, decimal=','), then to_csv).",
                CoterieWarning,
                stacklevel=3,
            )


def _warn_of_identifiers(readers: Sequence[ColumnReader], title: str) -> None:
    for reader in readers:
        if reader.rows >= ROWS and reader.one_each:
            warnings.warn(
                f"data: {title}: column '{reader.name}' has another whole number in every row, as an identifier has; "
                f"a model can only learn it by heart. If it is one, leave it out: data.leave_out=[{reader.name}].",
                CoterieWarning,
                stacklevel=2,
            )


def _without_holes(
    x: NDArray[np.float32], columns: Sequence[StoredColumn], table: _Choosing
) -> NDArray[np.bool_] | None:
    """Which rows stay, None for all: rows with holes are refused, left out, or stay and are spoken of."""
    holes = np.isnan(x)
    if not holes.any():
        return None
    missing = table.rules.missing
    starts = np.cumsum([0, *(column.width for column in columns)])[:-1]
    for place, column in zip(starts, columns, strict=True):
        given = column.fill is not None or column.values is not None
        rows = np.flatnonzero(holes[:, place]).tolist()
        if rows and (missing == "refuse" or (isinstance(missing, dict) and not given)):
            instead = f"missing.{column.name}=NUMBER, to stand for it, or missing=drop, to leave the row out"
            raise table.refuse(column.name, rows[0], f"the value is missing; fill it in, or write {instead}")
    bare = np.asarray(holes.any(1))
    where = [f"{c.name} ({holes[:, i].sum():,})" for i, c in zip(starts, columns, strict=True) if holes[:, i].any()]
    many = f"data: {table.title}: values are missing in {bare.sum():,} of {len(x):,} rows: {', '.join(where)}."
    if missing == "drop":
        if bare.all():
            raise CoterieError(f"{many} With missing: drop no row is left; write mean", code="data-empty")
        warnings.warn(f"{many} These rows are left out (data.missing=drop).", CoterieWarning, stacklevel=2)
        return ~bare
    what = "the numbers that were given" if isinstance(missing, dict) else "the mean of the training rows"
    warnings.warn(
        f"{many} Missing numbers become {what}, and one more input of each column says where "
        "(data.missing=drop leaves the rows out, refuse stops).",
        CoterieWarning,
        stacklevel=2,
    )
    return None
