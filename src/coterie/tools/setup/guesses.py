"""What the columns of a file are for, guessed from their names and values, each guess with its reason."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.text import counted
from coterie.tools.setup.facts import Column, File

# Words in the name of a column, the likeliest first.
OWNERS = (
    *(
        "client",
        "hospital",
        "clinic",
        "site",
        "centre",
        "center",
        "branch",
        "store",
        "shop",
        "station",
        "device",
        "sensor",
    ),
    *(
        "machine",
        "vehicle",
        "household",
        "building",
        "school",
        "bank",
        "user",
        "subject",
        "patient",
        "person",
        "customer",
    ),
    *("account", "owner", "node", "city", "region", "country"),
)
TARGETS = (
    *("target", "label", "class", "outcome", "y", "diagnosis", "response", "result", "survived", "churn", "default"),
)
AMOUNTS = ("price", "sales", "revenue", "demand", "load", "rating", "score", "quality", "amount", "cost")  # or inputs
TIMES = ("timestamp", "datetime", "date", "time", "when", "day")
KEYS = ("id", "uuid", "guid", "index", "key", "number", "no", "name")
SPLITS = {"train", "val", "validation", "test"}
CLASSES = 20  # different whole numbers that are still taken for classes
FEW_ROWS = 5  # of a client, on average: with fewer, a column hardly says whose rows they are
UNIQUE = 20  # rows from which on a value of its own in each of them is an identifier
Task: TypeAlias = Literal["classification", "regression"]


@dataclass(frozen=True)
class Guess:
    """A column and why it was chosen."""

    column: str
    why: str


@dataclass(frozen=True)
class Guesses:
    """What a configuration says of a file."""

    client: Guess
    target: Guess
    task: Task
    task_why: str
    time: Guess | None
    left_out: tuple[Guess, ...]
    inputs: tuple[str, ...]  # other columns, or the array of an npz file
    incomplete: tuple[Guess, ...]  # the target, the client, where they are missing in some rows
    unused: tuple[Guess, ...] = ()  # columns that a run leaves out by itself
    text: tuple[str, ...] = ()  # inputs of prose, whose words are hashed


def guess(file: File, client: str | None = None, target: str | None = None) -> Guesses:
    """Everything; client, target: named by the user."""
    if client is not None and client == target:
        raise CoterieError(f"--client and --target: both are '{client}'; name two columns", code="option-conflict")
    owner = Guess(file.column(client, "--client").name, "as you said") if client else owner_of(file, target)
    split = [c.name for c in file.columns if c.name == "split" and {str(v).lower() for v in c.values} <= SPLITS]
    aim = Guess(file.column(target, "--target").name, "as you said") if target else target_of(file, owner.column, split)
    _warn_of_constants(file, aim, named=target is not None)
    column, whose = file.column(aim.column, "--target"), file.column(owner.column, "--client")
    task, task_why = task_of(column)
    taken = {owner.column, aim.column, *split}
    time = None if split or file.format == "npz" else time_of([c for c in file.columns if c.name not in taken])
    rest = [c for c in file.columns if c.name not in taken and (time is None or c.name != time.column)]
    left_out = () if file.format == "npz" else tuple(filter(None, (useless(c, whose) for c in rest)))
    gone = {one.column for one in left_out}
    if file.format == "npz":
        return Guesses(owner, aim, task, task_why, time, left_out, (input_of(file, taken),), ())
    rest = [c for c in rest if c.name not in gone]
    prose = [c for c in rest if c.prose] or ([] if any(not c.unused for c in rest) else [c for c in rest if c.words])
    unused = tuple(Guess(c.name, _why_unused(file, c)) for c in rest if c.unused and c not in prose)
    inputs = tuple(c.name for c in rest if c in prose or not c.unused)
    text = tuple(c.name for c in prose)
    return Guesses(owner, aim, task, task_why, time, left_out, inputs, _incomplete(column, whose), unused, text)


def owner_of(file: File, target: str | None) -> Guess:
    """The column that says whose row it is."""
    likely = [c for c in file.columns if c.name != target and _owns(c)]
    for word in OWNERS:
        for column in likely:
            if word in words_in(column.name):
                return Guess(column.name, f"the name says whose rows they are; {_many(column)}")
    known = ", ".join(c.name for c in file.columns)
    for word in OWNERS:
        for column in file.columns:
            if column.name != target and word in words_in(column.name):
                raise CoterieError(
                    f"--client: {file.path}, column '{column.name}' {_no_owner(file, column)}; "
                    f"or another column: {known}",
                    code="option-missing",
                )
    raise CoterieError(
        f"--client: no column of {file.path} is called like an owner of rows (hospital, user, device, ...); write "
        f"--client COLUMN, one of {known}",
        code="option-missing",
    )


def target_of(file: File, client: str, split: Sequence[str]) -> Guess:
    """The column to be predicted."""
    free = [c for c in file.columns if c.name != client and c.name not in split and len(c.values) > 1]
    for word in TARGETS:
        for column in free:
            if words_in(column.name)[-1] == word:
                return Guess(column.name, f"the name says what is predicted; {_kind(column)}")
    for column in reversed(free):  # 'price' or the last column, but not 'avg_price' among others
        name = words_in(column.name)
        if name[-1] in AMOUNTS and (len(name) == 1 or column is free[-1]):
            return Guess(column.name, f"the name may say what is predicted; {_kind(column)}")
    for column in reversed(free):
        if column.kind in ("number", "boolean") or len(column.values) <= CLASSES:
            return Guess(column.name, f"the last column that can be predicted; {_kind(column)}")
    raise CoterieError(
        f"--target: no column of {file.path} can be predicted; write --target COLUMN", code="option-missing"
    )


def task_of(column: Column) -> tuple[Task, str]:
    """Classes or numbers."""
    if column.kind != "number":
        return "classification", counted(len(column.values), "name")
    if not column.whole:
        return "regression", "numbers with a fraction"
    if min(column.numbers) < 0:
        return "regression", "negative numbers are no classes; if these are, write names instead"
    if len(column.values) > CLASSES:
        return "regression", f"{len(column.values)} different whole numbers are more than {CLASSES}"
    return "classification", f"{len(column.values)} different whole numbers"


def time_of(columns: Sequence[Column]) -> Guess | None:
    """The column by which rows can be ordered."""
    for word in TIMES:
        for column in columns:
            words = words_in(column.name)
            numbers = column.kind == "number" and words != [word]  # `time` may be a number, `day_of_week` is no time
            if word in words and column.dated and not numbers and len(column.values) > 1:
                return Guess(column.name, "every row has a time: test rows are each client's latest")
    return None


def useless(column: Column, client: Column) -> Guess | None:
    """A column that would only tell rows or clients apart."""
    rows, values = len(column.cells), len(column.values)
    name = words_in(column.name)
    if column.prose:
        return None
    if values < 2:
        return Guess(column.name, "the same value in every row")
    if rows >= UNIQUE and values == rows and (column.whole or column.kind == "text"):
        return Guess(column.name, "a value of its own in every row: an identifier")
    if name[-1] in KEYS and values > rows / 2 and (column.whole or column.kind == "text"):
        return Guess(column.name, "by its name and values an identifier")
    pairs = set(zip(client.cells, column.cells, strict=True))
    if values > 2 and len(pairs) == values == len(client.values):
        return Guess(column.name, f"another name of '{client.name}': it would only tell clients apart")
    return None


def input_of(file: File, taken: set[str]) -> str:
    """The array of the inputs of an npz file."""
    for name, _ in sorted(file.inputs, key=lambda found: found[0] != "x"):
        if name not in taken:
            return name
    raise CoterieError(
        f"{file.path}: no array has more than one value per sample; save the inputs as x of shape (samples, inputs)",
        code="data-shape",
    )


def words_in(name: str) -> list[str]:
    """patientId, patient_id and "Patient ID" are patient and id."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return [part.lower() for part in parts] or [name.lower()]


def _owns(column: Column) -> bool:
    names = column.kind == "text" or column.whole
    return names and column.full and 2 <= len(column.values) <= len(column.cells) / FEW_ROWS


def _many(column: Column) -> str:
    return f"{counted(len(column.values), 'client')}, {len(column.cells) / len(column.values):.0f} rows each on average"


def _no_owner(file: File, column: Column) -> str:
    """Why a column that is called like an owner of rows is not taken for one, and what to write."""
    if not column.full:
        empty = column.cells.count(None)
        where = file.row(column.cells.index(None))
        return (
            f"says whose row it is, but is empty in {counted(empty, 'row')} (the first is {where}); fill them in, or "
            f"write --client {column.name}, which leaves these rows out"
        )
    if len(column.values) == 1:
        return (
            f"has one value only, '{column.values[0]}': one client cannot be compared with others; add rows of others"
        )
    if column.kind == "text" or column.whole:
        each = len(column.cells) / len(column.values)
        many = f"{len(column.values):,} values, {each:.1f} rows each on average"
        return f"has {many}; if these are clients, write --client {column.name}"
    return f"has no names or whole numbers; if it says all the same whose row it is, write --client {column.name}"


def _incomplete(target: Column, client: Column) -> tuple[Guess, ...]:
    """What makes rows useless where it is missing."""
    rows = len(target.cells)
    return tuple(
        Guess(c.name, f"empty in {c.cells.count(None):,} of {counted(rows, 'row')}, which are left out")
        for c in (target, client)
        if not c.full
    )


def _why_unused(file: File, column: Column) -> str:
    if column.untimed is None:
        return column.unused
    cell = column.cells[column.untimed]
    what = "empty" if cell is None else f"'{cell}'"
    return (
        f"nearly a time: {file.row(column.untimed)} is {what}; with an ISO date (2024-03-01) in every row, test rows "
        "can be each client's latest"
    )


def _warn_of_constants(file: File, aim: Guess, *, named: bool) -> None:
    """The likeliest target has one value: that is hardly what was meant."""
    column = file.column(aim.column, "--target")
    if len(column.values) < 2:
        warnings.warn(_constant(file, column, "there is nothing to learn"), CoterieWarning, stacklevel=2)
    if named or words_in(aim.column)[-1] in TARGETS:
        return
    for other in file.columns:
        if len(other.values) < 2 and words_in(other.name)[-1] in TARGETS:
            instead = f"'{aim.column}' is predicted instead; name another column with --target"
            warnings.warn(_constant(file, other, instead), CoterieWarning, stacklevel=2)


def _constant(file: File, column: Column, so: str) -> str:
    value = f"the same value ('{column.values[0]}')" if column.values else "no value"
    return f"{file.path}: column '{column.name}' has {value} in every row: {so}"


def _kind(column: Column) -> str:
    shown = ", ".join(column.values[:4]) + (", ..." if len(column.values) > 4 else "")
    return f"{len(column.values)} values ({shown})"
