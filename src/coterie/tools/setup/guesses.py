"""What the columns of a file are for, guessed from their names and values, each guess with its reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coterie.core.errors import CoterieError
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
    holes: bool  # whether the target is missing in some rows
    text: tuple[str, ...] = ()  # inputs of prose, whose words are hashed


def guess(file: File, client: str | None = None, target: str | None = None) -> Guesses:
    """Everything; client, target: named by the user."""
    if client is not None and client == target:
        raise CoterieError(f"--client and --target: both are '{client}'; name two columns", code="option-conflict")
    owner = Guess(file.column(client, "--client").name, "as you said") if client else owner_of(file, target)
    split = [c.name for c in file.columns if c.name == "split" and {str(v).lower() for v in c.values} <= SPLITS]
    aim = Guess(file.column(target, "--target").name, "as you said") if target else target_of(file, owner.column, split)
    column, whose = file.column(aim.column, "--target"), file.column(owner.column, "--client")
    task, task_why = task_of(column)
    taken = {owner.column, aim.column, *split}
    time = None if split or file.format == "npz" else time_of([c for c in file.columns if c.name not in taken])
    rest = [c for c in file.columns if c.name not in taken and (time is None or c.name != time.column)]
    left_out = () if file.format == "npz" else tuple(filter(None, (useless(c, whose) for c in rest)))
    gone = {one.column for one in left_out}
    inputs = tuple(c.name for c in rest if c.name not in gone) if file.format != "npz" else (input_of(file, taken),)
    prose = () if file.format == "npz" else tuple(c.name for c in rest if c.prose and c.name in inputs)
    return Guesses(owner, aim, task, task_why, time, left_out, inputs, not column.full, prose)


def owner_of(file: File, target: str | None) -> Guess:
    """The column that says whose row it is."""
    likely = [c for c in file.columns if c.name != target and _owns(c)]
    for word in OWNERS:
        for column in likely:
            if word in words_in(column.name):
                return Guess(column.name, f"the name says whose rows they are; {_many(column)}")
    known = ", ".join(c.name for c in file.columns)
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
        return "classification", f"{len(column.values)} names"
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
    return f"{len(column.values)} clients, {len(column.cells) / len(column.values):.0f} rows each on average"


def _kind(column: Column) -> str:
    shown = ", ".join(column.values[:4]) + (", ..." if len(column.values) > 4 else "")
    return f"{len(column.values)} values ({shown})"
