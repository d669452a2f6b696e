"""A grid of configurations: any key may have several values, and every combination is a run with each seed.

Every run has a directory, OUT/NAME/seed-N, and a process of its own: what is finished is kept, the rest goes on.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from coterie.core.errors import CoterieError
from coterie.core.metrics import AgainstLocal, Summary
from coterie.core.registry import DATASETS, METHODS, MODELS, NO_CODE, PARTITIONS, Catalogue, Consent
from coterie.tools.report.ranking import LOCAL, beside_directory, circumstances
from coterie.training import warnings as run_warnings
from coterie.training.build import build_method, resolved
from coterie.training.config import NAMED, RunConfig, Tree, read, read_file
from coterie.training.run_directory import read_history

Axes = dict[str, list[str]]  # the values of each key, as they were written
KINDS: Mapping[str, Catalogue] = {c.kind: c for c in (PARTITIONS, DATASETS, MODELS, METHODS)}  # the longest key first
UNIMPORTANT = ("checkpoint_every",)  # changes nothing about what a run finds
LONGEST = 100  # characters of a directory's name


@dataclass(frozen=True)
class Cell:
    """A point of the grid: what it is called, and the configuration that its seeds share."""

    name: str  # of its directory: wecfl,k4,participation0.1
    title: str  # for people: wecfl k=4 participation=0.1
    words: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Planned:
    """A run of the grid: a cell with a seed."""

    cell: Cell
    seed: int
    config: RunConfig
    tree: Tree  # the same with every parameter spelled out

    def path(self, out: Path) -> Path:
        """Its directory."""
        return out / self.cell.name / f"seed-{self.seed}"


@dataclass(frozen=True, eq=False)
class Grid:
    """All runs, seed by seed, so that every cell has one before any has two; and what a reader should know."""

    runs: tuple[Planned, ...]
    notes: tuple[str, ...]


def plan(file: Path | None, words: Sequence[str], consent: Consent = NO_CODE) -> Grid:
    """Every combination of the words' values, checked as `coterie run` checks one."""
    axes = read_axes(words)
    seeds = [_whole("seed", text) for text in axes.pop("seed", [])]
    base = read(file, consent=consent.typed(words))
    cells, notes = combine(axes, base)
    runs = []
    for seed in seeds or [base.seed]:
        for cell in cells:
            config = read(file, [*cell.words, f"seed={seed}"], consent=consent)
            runs.append(Planned(cell, seed, config, resolved(config, build_method(config))))
    return Grid(tuple(runs), notes)


# ------------------------------------------------------------------------------------------------- what was written


def read_axes(words: Sequence[str]) -> Axes:
    """Each key's values. `method=a,b` is short for method.name=a,b, and `seeds=3` for seed=0,1,2."""
    axes: Axes = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise CoterieError(f"'{word}': expected key=value, or key=value,value for several", code="option-invalid")
        values = split_values(key, text)
        if key == "seeds":
            key, values = "seed", [str(seed) for seed in range(_count(key, text))]
        elif key in NAMED and not text.startswith("{"):
            key = f"{key}.name"
        if key == "seed" and key in axes:
            raise CoterieError("seed: give seeds=3 (for 0, 1, 2) or seed=3,7, once", code="option-conflict")
        axes[key] = list(dict.fromkeys(values))
    # A name first: it decides what the other keys mean. The outer one before the inner: data.name, data.partition.name.
    return {key: axes[key] for key in sorted(axes, key=names_first)}


def names_first(key: str) -> tuple[bool, int]:
    """A key to sort by, which leaves keys that are no names in the order they have."""
    named = key.endswith(".name")
    return not named, key.count(".") if named else 0


def split_values(key: str, text: str) -> list[str]:
    """Cut at commas, but not inside brackets or quotes."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        depth += 0 if quote else (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += letter
    values = [value.strip() for value in values]
    if len(values) > 1 and not all(values):
        raise CoterieError(
            f"{key}: '{text}' has an empty value; write {key}={','.join(filter(None, values))}", code="option-invalid"
        )
    return values


def _count(key: str, text: str) -> int:
    many = _whole(key, text)
    if many < 1:
        raise CoterieError(f"{key}: at least 1, not {many}", code="option-invalid")
    return many


def _whole(key: str, text: str) -> int:
    if not text.isdecimal():
        raise CoterieError(
            f"{key}: '{text}' is not a whole number; write seeds=3 (for 0, 1, 2) or seed=3,7", code="option-invalid"
        )
    return int(text)


# ------------------------------------------------------------------------------------------------- combinations


def combine(axes: Axes, base: RunConfig) -> tuple[list[Cell], tuple[str, ...]]:
    """Every combination, without the keys that its method (model, data, partition) does not have; and which those are.

    A key that none of them has stays, and is refused when the configuration is checked.
    """
    left_out: dict[str, list[str]] = {}
    combinations: dict[tuple[tuple[str, str], ...], None] = {}
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        applied = []
        for key, value in chosen.items():
            stranger = _stranger(key, chosen, axes, base)
            if stranger is None:
                applied.append((key, value))
            elif stranger not in left_out.setdefault(key, []):
                left_out[key].append(stranger)
        combinations[tuple(applied)] = None
    varied = [key for key, values in axes.items() if len(values) > 1]
    cells = _cells([dict(applied) for applied in combinations], varied, base)
    notes = []
    for key, names in left_out.items():
        kind, parameter = _about(key)
        inside = [
            f"{name} has {kind}.base.{parameter}"
            for name in names
            if any(f.name == parameter for f in _base_fields(kind, name, base.consent.typed(names)))
        ]
        more = f" ({', '.join(inside)})" if inside else ""
        notes.append(f"{key}: left out for {', '.join(names)}, which has no such key{more}")
    return cells, tuple(notes)


def _base_fields(kind: str, name: str, consent: Consent) -> tuple[dataclasses.Field[Any], ...]:
    """Those of the method within a method."""
    found: Any = KINDS[kind].find(name, consent)
    base = getattr(found, "base", None) if dataclasses.is_dataclass(found) else None
    return dataclasses.fields(base) if dataclasses.is_dataclass(base) else ()


def knows(key: str, names: Mapping[str, str], base: RunConfig) -> bool | None:
    """Whether the thing that a key is about has it, given the names chosen; None where there is no telling."""
    kind, parameter = _about(key)
    if not kind:
        return None
    fields = _fields(kind, names.get(f"{kind}.name") or _name(kind, base), base.consent.typed(list(names.values())))
    return None if fields is None else parameter in fields


def _stranger(key: str, chosen: dict[str, str], axes: Axes, base: RunConfig) -> str | None:
    """The chosen thing that does not have this key, where another thing of the grid does."""
    if knows(key, chosen, base) is not False:
        return None
    kind = _about(key)[0]
    others = [chosen | {f"{kind}.name": name} for name in axes.get(f"{kind}.name", [])]
    return chosen[f"{kind}.name"] if any(knows(key, other, base) for other in others) else None


def _about(key: str) -> tuple[str, str]:
    """`method.base.k` is about the parameter `base` of the method; nothing for keys of the run and for names."""
    for kind in KINDS:
        parameter = key.removeprefix(f"{kind}.").partition(".")[0]
        if key.startswith(f"{kind}.") and parameter != "name" and f"{kind}.{parameter}" not in KINDS:
            return kind, parameter
    return "", ""


def _fields(kind: str, name: str, consent: Consent) -> set[str] | None:
    found = KINDS[kind].find(name, consent)
    return {f.name for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else None


def _name(kind: str, base: RunConfig) -> str:
    partition = base.data.partition.name if base.data.partition else "natural"
    return {"method": base.method.name, "model": base.model.name, "data": base.data.name}.get(kind, partition)


def _cells(combinations: Sequence[Mapping[str, str]], varied: Sequence[str], base: RunConfig) -> list[Cell]:
    """Named after the method and what varies."""
    short = {key: key.removesuffix(".name").rpartition(".")[2] for key in varied}
    shown = {key: key if list(short.values()).count(short[key]) > 1 else short[key] for key in varied}
    cells: dict[str, Cell] = {}
    for chosen in combinations:
        method = chosen.get("method.name", base.method.name)
        pairs = [(shown[key], chosen[key]) for key in varied if key in chosen and key != "method.name"]
        # No "=" in a directory's name: as a word of a command it would be taken for a change.
        parts = [_plain(method), *(f"{key}{_plain(value, '-')}" for key, value in pairs)]
        name = ",".join(parts)
        words = tuple(f"{key}={value}" for key, value in chosen.items())
        if len(name) > LONGEST or name in cells:
            name = f"{name[:LONGEST]}-{zlib.crc32(repr(words).encode()):08x}"
        cells[name] = Cell(name, " ".join([method, *(f"{key}={value}" for key, value in pairs)]), words)
    return list(cells.values())


def _plain(value: str, before: str = "") -> str:
    """Letters that mean nothing to a shell; something `before` it where it does not begin with a digit."""
    plain = re.sub(r"[^\w.+-]+", "-", value).strip("-")
    return plain if value[:1].isdigit() else f"{before}{plain}"


# ------------------------------------------------------------------------------------------------- directories

State = Literal["new", "begun", "finished"]


def state_of(run: Planned, out: Path) -> State:
    """How far the run is; a directory with another configuration is refused."""
    path = run.path(out)
    if not (path / "config.yaml").is_file():
        return "new"
    differing = list(_differences(read_file(path / "config.yaml"), run.tree))
    if differing:
        raise CoterieError(
            f"{path}: holds a run of another configuration ({'; '.join(differing[:3])}); choose another --out",
            code="run-mismatch",
        )
    last = "newcomers.json" if run.config.newcomers else "clients.json"
    return "finished" if (path / last).is_file() else "begun"


@dataclass(frozen=True)
class Outcome:
    """What a finished run found."""

    seed: int
    path: Path
    summary: Summary  # of the last round
    seconds: float  # over all rounds
    warnings: tuple[str, ...] = ()
    against: AgainstLocal | None = None  # beside the same run of the method `local`, where there is one


def alone_of(run: Planned, runs: Sequence[Planned]) -> Planned | None:
    """The run of the method `local` with the same seed, data, model and budget; None for `local` itself."""
    mine = circumstances(run.tree)
    found = (one for one in runs if one.config.method.name == LOCAL and one is not run)
    return next((one for one in found if circumstances(one.tree) == mine), None)


def outcome_of(run: Planned, out: Path, alone: Planned | None = None) -> Outcome:
    """A finished run read back from its directory. alone: that of the method `local`, finished too."""
    path = run.path(out)
    history = read_history(path, run.config.rounds)
    if not history or history[-1].summary is None:
        raise CoterieError(
            f"{path}: its rounds.jsonl does not say how the run ended; remove the directory to run it again",
            code="run-damaged",
        )
    seconds = sum(event.seconds for event in history)
    against = None if alone is None else beside_directory(path, alone.path(out))
    return Outcome(run.seed, path, history[-1].summary, seconds, run_warnings.read(path), against)


def _differences(there: Tree, here: Tree) -> Iterator[str]:
    if here["engine"]["name"] == "auto":  # written down as what it came to
        there, here = there | {"engine": {}}, here | {"engine": {}}
    if here["device"] == "auto":  # the same
        there, here = there | {"device": ""}, here | {"device": ""}
    one, other = dict(flat(there)), dict(flat(here))
    for key in one.keys() | other.keys():
        if one.get(key) != other.get(key) and key not in UNIMPORTANT:
            yield f"{key} is {_shown(one, key)} there and {_shown(other, key)} here"


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A tree's leaves under their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return yaml.safe_dump(leaves[key], default_flow_style=True).split("\n")[0] if key in leaves else "not given"
