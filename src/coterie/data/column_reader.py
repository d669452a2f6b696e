"""One column of a table, read part by part: it turns out to have numbers, text, dates or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coterie.data.cells import (
    BOOLEANS,
    DECIMAL_COMMA,
    MISSING_NUMBER,
    Bad,
    as_cell,
    category,
    finite,
    is_date,
    parsed,
)
from coterie.data.hashed_texts import hashed

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
