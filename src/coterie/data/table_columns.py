"""Which columns of a table are inputs, and as what: the same rules for csv, parquet and tables in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass as plain
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, StrictInt

from coterie.core.errors import CoterieError, CoterieWarning, suggest
from coterie.core.settings import STRICT, dataclass
from coterie.data.cells import DECIMAL_COMMA
from coterie.data.column_reader import TEXTS, ColumnReader, TextReader
from coterie.data.encoding import StoredColumn, TablePlan

FEW = 50  # different values of a column of text that is taken for categories
ROWS = 50  # from so many on, a whole number of its own in every row looks like an identifier
SHOWN = 6  # names in a line

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
class _Table:
    """What errors call a table and its rows, and what is to be done with its columns."""

    title: str
    row: Callable[[int], str]
    rules: ColumnRules

    def refuse(self, name: str, row: int, fault: str) -> CoterieError:
        return CoterieError(f"data: {self.title}, column '{name}', {self.row(row)}: {fault}", code="data-cell")


def choose(readers: Sequence[ColumnReader], rules: ColumnRules, title: str, row: Callable[[int], str]) -> ChosenColumns:
    """The inputs among the columns that were read; what is not obvious is said."""
    table = _Table(title, row, rules)
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


def _checked(reader: ColumnReader, table: _Table) -> str:
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


def _without_holes(x: NDArray[np.float32], columns: Sequence[StoredColumn], table: _Table) -> NDArray[np.bool_] | None:
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
