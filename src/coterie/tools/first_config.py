"""A first configuration for a user's own file: what its columns have, what they are for, and the YAML that says so."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import yaml
from numpy.typing import NDArray

from coterie.core.errors import CoterieError, CoterieWarning
from coterie.core.text import counted
from coterie.data.cells import as_cell, category, time_in
from coterie.data.columns import ColumnKind, ColumnReader, ColumnRules, text_reason
from coterie.data.table import LARGEST, file_at, open_rows, read_member, reading

NEARLY = 0.1  # of the rows; with fewer that have no date, a column was meant as one
ROWS = 20_000  # that are looked at; enough to guess by
Format: TypeAlias = Literal["csv", "parquet", "npz"]
ENDINGS: Mapping[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".data": "csv",
    ".parquet": "parquet",
    ".npz": "npz",
}


@dataclass(frozen=True)
class SeenColumn:
    """A column of a table, or an array of one value per sample."""

    name: str
    cells: tuple[str | None, ...]  # None where one is missing
    kind: ColumnKind
    whole: bool  # whether all its numbers are whole
    dated: bool  # whether every row has a number, or an ISO date: then rows can be ordered by it
    prose: bool = False  # whether it has text of several words, that is hardly ever the same
    words: bool = False  # whether it has text of several words
    unused: str = ""  # why it would be no input, where it would be none
    untimed: int | None = None  # the first row without an ISO date, where nearly all have one

    @classmethod
    def of(cls, name: str, cells: Iterable[str]) -> SeenColumn:
        """Of cells as a csv file has them."""
        texts = list(cells)
        reader = ColumnReader(name)
        reader.add(texts)
        kept = tuple(category(text.strip()) for text in texts)
        numbers = reader.kind == "number"
        whole = numbers and all(float(cell) % 1 == 0 for cell in kept if cell is not None and _number(cell))
        full = None not in kept
        odd = [row for row, cell in enumerate(kept) if cell is None or time_in(cell) is None]
        unused = "" if reader.kind in ("number", "boolean") else text_reason(reader, ColumnRules())
        nearly = odd[0] if 0 < len(odd) <= NEARLY * len(kept) else None
        dated = full and (numbers or not odd)
        return cls(name, kept, reader.kind, whole, dated, reader.is_prose, reader.has_words, unused, nearly)

    @property
    def values(self) -> tuple[str, ...]:
        """The different values, in the order of their first appearance."""
        return tuple(dict.fromkeys(cell for cell in self.cells if cell is not None))

    @property
    def full(self) -> bool:
        """Whether no value is missing."""
        return None not in self.cells

    @property
    def floats(self) -> NDArray[np.float64]:
        """The number of each row; NaN where there is none."""
        return np.array([float(c) if c is not None and _number(c) else np.nan for c in self.cells], dtype=np.float64)

    @property
    def numbers(self) -> list[float]:
        """Its values as numbers."""
        return [float(cell) for cell in self.values if _number(cell)]


@dataclass(frozen=True)
class SeenFile:
    """A file of samples, as far as it was looked at."""

    path: str
    format: Format
    columns: tuple[SeenColumn, ...]
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()  # npz: arrays with more than one value per sample, by name
    whole: bool = True  # whether every row was looked at
    called: tuple[str, ...] = ()  # what errors call each row

    @property
    def rows(self) -> int:
        """How many rows were looked at."""
        return len(self.columns[0].cells) if self.columns else 0

    def row(self, number: int) -> str:
        """What errors call a row."""
        return self.called[number] if self.called else f"row {number} (the first is 0)"

    def column(self, name: str, option: str) -> SeenColumn:
        """A column by the name that a user gave."""
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(column.name for column in self.columns)
        raise CoterieError(f"{option}: {self.path} has no '{name}'; it has {known}", code="data-column-unknown")


def look(path: str) -> SeenFile:
    """What is in a file."""
    file = file_at(path)
    form = ENDINGS.get(file.suffix.lower())
    if form is None:
        raise CoterieError(
            f"{path}: expected a table or arrays, one row per sample: .csv, .parquet or .npz", code="data-file-format"
        )
    with reading(file):
        if form == "npz":
            return _npz(path, file)
        rows = open_rows(path)
        cells: dict[str, list[str]] = {name: [] for name in rows.names}
        called: list[str] = []
        for chunk in rows.chunks((), rows.names):
            for name, values in chunk.columns.items():
                cells[name] += [as_cell(value) for value in values.tolist()]
            called += [chunk.row(row) for row in range(len(chunk))]
            if len(called) > ROWS:
                break
    if not called:
        raise CoterieError(f"{path}: has no rows; a header, then one row per sample, is expected", code="data-empty")
    columns = tuple(SeenColumn.of(name, values[:ROWS]) for name, values in cells.items())
    return SeenFile(path, form, columns, whole=len(called) <= ROWS, called=tuple(called[:ROWS]))


def _npz(path: str, file: Path) -> SeenFile:
    columns, inputs = [], []
    with zipfile.ZipFile(file) as archive:
        for entry in archive.namelist():
            name = entry.removesuffix(".npy")
            array = read_member(file, archive, name, LARGEST)
            if array.ndim > 1:
                inputs.append((name, tuple(array.shape[1:])))
            elif array.ndim == 1:
                texts = array.astype(str) if array.dtype.kind == "S" else array
                columns.append(SeenColumn.of(name, [as_cell(value) for value in texts[:ROWS].tolist()]))
    return SeenFile(path, "npz", tuple(columns), tuple(inputs))


def _number(cell: str) -> bool:
    try:
        return float(cell) == float(cell) and abs(float(cell)) != float("inf")
    except ValueError:
        return False


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
IDENTIFIERS = ("id", "uuid", "guid", "key")  # of these, a value of its own in most rows of a client is enough
SPLITS = {"train", "val", "validation", "test"}
LAST = "the last column that can be predicted"
CLASSES = 20  # different whole numbers that are still taken for classes
FEW_ROWS = 5  # of a client, on average: with fewer, a column hardly says whose rows they are
IN_ORDER = 0.9  # of a client's rows; then a column of numbers that is called a time is one
SHOWN = 6  # names of columns in a line
TELLS = 0.98  # accuracy, or R2, of one column alone: then it may be another form of the target
ALIKE = 0.25  # correlation of a client's rows with those before them: then they are a series
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
    doubts: tuple[Guess, ...] = ()  # columns to look at before one trains, and why


def guess(
    file: SeenFile, client: str | None = None, target: str | None = None, leave_out: Sequence[str] = ()
) -> Guesses:
    """Everything; client, target, leave_out: named by the user."""
    for name in leave_out:
        file.column(name, "--leave-out")
        if name in (client, target):
            raise CoterieError(
                f"--leave-out: '{name}' is named by --client or --target too; leave it out of one",
                code="option-conflict",
            )
    if client is not None and client == target:
        raise CoterieError(f"--client and --target: both are '{client}'; name two columns", code="option-conflict")
    named, file = file, replace(file, columns=tuple(c for c in file.columns if c.name not in leave_out))
    owner = Guess(file.column(client, "--client").name, "as you said") if client else owner_of(file, target)
    split = [c.name for c in file.columns if c.name == "split" and {str(v).lower() for v in c.values} <= SPLITS]
    aim = Guess(file.column(target, "--target").name, "as you said") if target else target_of(file, owner.column, split)
    _warn_of_constants(file, aim, named=target is not None)
    column, whose = file.column(aim.column, "--target"), file.column(owner.column, "--client")
    task, task_why = task_of(column)
    taken = {owner.column, aim.column, *split}
    free = [c for c in file.columns if c.name not in taken]
    time = None if split or file.format == "npz" else time_of(free, whose)
    rest = [c for c in file.columns if c.name not in taken and (time is None or c.name != time.column)]
    asked = tuple(Guess(name, "as you said") for name in leave_out)
    left_out = () if file.format == "npz" else (*asked, *filter(None, (useless(c, whose) for c in rest)))
    gone = {one.column for one in left_out}
    if file.format == "npz":
        return Guesses(owner, aim, task, task_why, time, left_out, (input_of(file, taken),), ())
    rest = [c for c in rest if c.name not in gone]
    prose = [c for c in rest if c.prose] or ([] if any(not c.unused for c in rest) else [c for c in rest if c.words])
    unused = tuple(Guess(c.name, _why_unused(file, c)) for c in rest if c.unused and c not in prose)
    inputs = tuple(c.name for c in rest if c in prose or not c.unused)
    text = tuple(c.name for c in prose)
    used = [c for c in rest if c.name in inputs and c not in prose]
    doubts = (*_doubts_of_target(aim, column, named), *leaks(used, column, task), *_of_clients(used, whose))
    if time is None and not split:
        doubts = (*doubts, *series(used, column, whose, task))
    incomplete = _incomplete(column, whose)
    return Guesses(owner, aim, task, task_why, time, left_out, inputs, incomplete, unused, text, doubts)


def owner_of(file: SeenFile, target: str | None) -> Guess:
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


def target_of(file: SeenFile, client: str, split: Sequence[str]) -> Guess:
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
            return Guess(column.name, f"{LAST}; {_kind(column)}")
    raise CoterieError(
        f"--target: no column of {file.path} can be predicted; write --target COLUMN", code="option-missing"
    )


def task_of(column: SeenColumn) -> tuple[Task, str]:
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


def time_of(columns: Sequence[SeenColumn], client: SeenColumn) -> Guess | None:
    """The column by which rows can be ordered."""
    for word in TIMES:
        for column in columns:
            words = words_in(column.name)
            if word not in words or not column.dated or len(column.values) < 2:
                continue
            # `time` may be a number; `day_of_week` is no time, nor is `reaction_time`, which goes up and down
            if column.kind != "number" or words == [word] or (words[-1] == word and _in_order(column, client)):
                return Guess(column.name, "every row has a time: test rows are each client's latest")
    return None


def _in_order(column: SeenColumn, client: SeenColumn) -> bool:
    """Whether a client's rows are in the order of these numbers, nearly, and most of them have one of their own."""
    values, owner = column.floats, _codes(client)
    order = np.argsort(owner, kind="stable")
    same = owner[order][1:] == owner[order][:-1]
    steps = np.diff(values[order])[same]
    ahead = bool(len(steps)) and float((steps >= 0).mean()) >= IN_ORDER
    return ahead and float((steps != 0).mean()) > 0.5


def leaks(columns: Sequence[SeenColumn], target: SeenColumn, task: Task) -> tuple[Guess, ...]:
    """Inputs that give the target away: one of them alone is enough to know it."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    known = np.array([cell is not None for cell in target.cells])
    y = _codes(target) if task == "classification" else target.floats
    known &= np.isfinite(y)
    found = []
    for column in columns:
        x = column.floats if column.kind == "number" else _codes(column).astype(np.float64)
        rows = known & np.isfinite(x)
        if rows.sum() < UNIQUE or len(np.unique(y[rows])) < 2:
            continue
        kind = DecisionTreeClassifier if task == "classification" else DecisionTreeRegressor
        tree = kind(max_leaf_nodes=64, min_samples_leaf=5, random_state=0)
        score = float(tree.fit(x[rows, None], y[rows]).score(x[rows, None], y[rows]))
        usual = np.unique(y[rows], return_counts=True)[1].max() / rows.sum() if task == "classification" else 0.0
        if score >= TELLS and 1 - score < (1 - usual) / 2:
            measure = f"{score:.0%} right" if task == "classification" else f"R2 {score:.2f}"
            found.append(
                Guess(
                    column.name,
                    f"tells '{target.name}' all by itself ({measure}): is it known before '{target.name}' is? If "
                    "not, leave it out",
                )
            )
    return tuple(found)


def series(columns: Sequence[SeenColumn], target: SeenColumn, client: SeenColumn, task: Task) -> tuple[Guess, ...]:
    """Rows that are much like those before them, where no column says when they were."""
    kind = _codes(target) if task == "classification" else np.zeros(len(target.cells), dtype=np.int64)
    group = _codes(client) * (int(kind.max(initial=0)) + 1) + kind  # a file may be in order of its classes
    found = [_with_the_last(c.floats, group) for c in columns if c.kind == "number" and len(c.values) > 2]
    own = _with_the_last(target.floats, group) if task == "regression" else 0.0
    middle = float(np.median(found)) if len(found) >= 3 else 0.0
    if max(middle, own / 2) < ALIKE:
        return ()
    return (
        Guess(
            client.name,
            f"a client's rows are like those before them (correlation {max(middle, own):.2f}), as in a series: test "
            "rows drawn at random lie between training rows, and scores are too good. With a column of times, "
            "data.time=COLUMN tests on the latest rows",
        ),
    )


def _with_the_last(values: NDArray[np.float64], group: NDArray[np.int64]) -> float:
    """The correlation of values with those before them in their group, the means of groups set apart."""
    order = np.argsort(group, kind="stable")
    values, group = values[order], group[order]
    fine = np.isfinite(values)
    values, group = values[fine], group[fine]
    _, place, many = np.unique(group, return_inverse=True, return_counts=True)
    if not len(values):
        return 0.0
    values = values - (np.bincount(place, values) / many)[place]
    spread = float(np.square(values).sum())
    same = group[1:] == group[:-1]
    return float((values[1:] * values[:-1])[same].sum()) / spread if spread > 0 else 0.0


def _of_clients(columns: Sequence[SeenColumn], client: SeenColumn) -> tuple[Guess, ...]:
    """Inputs that are the same in all rows of a client."""
    many, own = len(client.values), []
    for column in columns:
        if len(column.values) > 1 and many > 2 and len(set(zip(client.cells, column.cells, strict=True))) == many:
            own.append(column.name)
    if not own:
        return ()
    told = "the same in all rows of a client: tells clients apart, and nothing of their rows"
    return (Guess(", ".join(own), told),)


def _doubts_of_target(aim: Guess, column: SeenColumn, file: SeenFile) -> tuple[Guess, ...]:
    """A target that no name speaks for."""
    if not aim.why.startswith(LAST):
        return ()
    others = [
        c.name for c in reversed(file.columns) if c is not column and (c.kind == "number" or len(c.values) <= CLASSES)
    ]
    more = ", ..." if len(others) > SHOWN else ""
    return (
        Guess(
            aim.column,
            f"is predicted only because it is the last column; if that is wrong: --target COLUMN, one of "
            f"{', '.join(others[:SHOWN])}{more}",
        ),
    )


def _codes(column: SeenColumn) -> NDArray[np.int64]:
    """The values by number; a missing one is a value."""
    places: dict[str | None, int] = {}
    return np.array([places.setdefault(cell, len(places)) for cell in column.cells], dtype=np.int64)


def useless(column: SeenColumn, client: SeenColumn) -> Guess | None:
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
    if name[-1] in IDENTIFIERS and len(pairs) > rows / 2 and len(pairs) > len(client.values):
        return Guess(column.name, "by its name and values an identifier: most rows of a client have one of their own")
    if values > 2 and len(pairs) == values == len(client.values):
        return Guess(column.name, f"another name of '{client.name}': it would only tell clients apart")
    return None


def input_of(file: SeenFile, taken: set[str]) -> str:
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


def _owns(column: SeenColumn) -> bool:
    names = column.kind == "text" or column.whole
    return names and column.full and 2 <= len(column.values) <= len(column.cells) / FEW_ROWS


def _many(column: SeenColumn) -> str:
    return f"{counted(len(column.values), 'client')}, {len(column.cells) / len(column.values):.0f} rows each on average"


def _no_owner(file: SeenFile, column: SeenColumn) -> str:
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


def _incomplete(target: SeenColumn, client: SeenColumn) -> tuple[Guess, ...]:
    """What makes rows useless where it is missing."""
    rows = len(target.cells)
    return tuple(
        Guess(c.name, f"empty in {c.cells.count(None):,} of {counted(rows, 'row')}, which are left out")
        for c in (target, client)
        if not c.full
    )


def _why_unused(file: SeenFile, column: SeenColumn) -> str:
    if column.untimed is None:
        return column.unused
    cell = column.cells[column.untimed]
    what = "empty" if cell is None else f"'{cell}'"
    return (
        f"nearly a time: {file.row(column.untimed)} is {what}; with an ISO date (2024-03-01) in every row, test rows "
        "can be each client's latest"
    )


def _warn_of_constants(file: SeenFile, aim: Guess, *, named: bool) -> None:
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


def _constant(file: SeenFile, column: SeenColumn, so: str) -> str:
    value = f"the same value ('{column.values[0]}')" if column.values else "no value"
    return f"{file.path}: column '{column.name}' has {value} in every row: {so}"


def _kind(column: SeenColumn) -> str:
    shown = ", ".join(column.values[:4]) + (", ..." if len(column.values) > 4 else "")
    return f"{len(column.values)} values ({shown})"


Line = tuple[str, object, str]  # key, value, explanation
LINE_WIDTH = 34  # of keys and values, where they are shorter


def document(file: SeenFile, found: Guesses, name: str) -> str:
    """The text of the file `name`."""
    top: Sequence[Line] = (
        ("model", model_of(file, found), "see coterie list models; or yours: mine:Net"),
        ("method", "halves", "finds the clusters and their number by itself; see coterie list methods"),
    )
    local: Sequence[Line] = (
        ("epochs", 5, "passes over its own rows that a client makes in a round"),
        ("batch", 32, "rows per step"),
        ("lr", "auto", "the learning rate; auto tries some on a few clients before the first round"),
    )
    rest: Sequence[Line] = (
        ("rounds", 30, "how often clients train and the server averages their models"),
        ("participation", 1.0, "the share of clients that take part in a round; 20 would be twenty clients"),
        ("seed", 0, "the same seed gives the same result"),
    )
    return "\n".join(
        [
            f"# Written by: coterie init {file.path}. Lines may be changed; docs/configuration.md has all keys.",
            f"# Look before you train: coterie inspect {name}",
            f"# Train:                 coterie run {name}",
            "",
            "data:  # the file, and what its columns are for",
            *_lines(data_lines(file, found), "  "),
            *(["  # look at these before you train:"] if found.doubts else []),
            *(f"  #   {one.column}: {one.why}" for one in found.doubts),
            *_lines(top),
            "local:  # how a client trains",
            *_lines(local, "  "),
            *_lines(rest),
            "",
        ]
    )


def data_lines(file: SeenFile, found: Guesses) -> list[Line]:
    """What is said of the data."""
    array = file.format == "npz"
    what = "array" if array else "column"
    lines: list[Line] = [
        ("name", file.format, "the format of the file"),
        ("path", file.path, "seen from the directory in which coterie is called"),
        *([("x", found.inputs[0], "the array of the inputs")] if array else []),
        ("client", found.client.column, f"the {what} that says whose row it is: {found.client.why}"),
        ("y", found.target.column, f"the {what} to predict: {found.target.why}"),
        ("task", found.task, f"{found.task_why}; or {_other(found.task)}"),
    ]
    if found.time is not None:
        lines.append(("time", found.time.column, found.time.why))
    if found.text:
        lines.append(("text", list(found.text), "text of several words, which are hashed; without this it is left out"))
    if found.left_out:
        names = [one.column for one in found.left_out]
        why = "; ".join(f"{one.column}: {one.why}" for one in found.left_out)
        lines.append(("leave_out", names, f"no inputs. {why}"))
    if not array:
        lines.append(("missing", "mean", "what empty cells of inputs become; or drop, to leave such rows out"))
    return lines


def model_of(file: SeenFile, found: Guesses) -> str:
    """A network that fits the inputs."""
    shape = dict(file.inputs).get(found.inputs[0] if found.inputs else "", ())
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 8 else "mlp"


def _other(task: str) -> str:
    return "regression, if they are amounts" if task == "classification" else "classification, if they are classes"


def _lines(lines: Sequence[Line], indent: str = "") -> list[str]:
    return [f"{indent}{key}: {_value(value)}".ljust(LINE_WIDTH) + f"  # {said}" for key, value, said in lines]


def _value(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("...\n").strip()
