"""Reading files that may be half written, damaged or of another kind: what cannot be read is said, never raised."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.files import plain_bytes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NODES = 100_000  # of a configuration: a file that unfolds to more is not one
DEPTH = 50


@dataclass(frozen=True)
class Found:
    """What a file held; `problem` says why it is None or incomplete, where that is no matter of course."""

    value: Any = None
    problem: str | None = None


def read_json(file: Path) -> Found:
    """A JSON document; nothing, without a problem, where there is no file."""
    try:
        return Found(json.loads(plain_bytes(file)))
    except FileNotFoundError:
        return Found()
    except (OSError, ValueError, RecursionError):
        return Found(None, f"{file.name} cannot be read")


def read_yaml(file: Path) -> Found:
    """A YAML mapping, unfolded to plain dicts and lists; nothing, without a problem, where there is no file."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built
    try:
        value = _Unfold().plain(yaml.load(plain_bytes(file), Loader=loader))
    except FileNotFoundError:
        return Found()
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return Found(None, f"{file.name} cannot be read")
    if not isinstance(value, dict):
        return Found(None, f"{file.name} holds no configuration")
    return Found(value)


class _Unfold:
    """YAML may refer to itself; what comes out here is a finite tree of plain values."""

    def __init__(self) -> None:
        self._seen = 0

    def plain(self, value: Any, depth: int = 0) -> Any:
        self._seen += 1
        if self._seen > NODES or depth > DEPTH:
            raise ValueError("too large")
        if isinstance(value, dict):
            return {str(k): self.plain(v, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set):
            return [self.plain(v, depth + 1) for v in value]
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def read_lines(file: Path) -> Found:
    """JSON objects, one per line. A last line that is cut short is a matter of course, any other bad line is not."""
    try:
        texts = plain_bytes(file).split(b"\n")
    except FileNotFoundError:
        return Found([])
    except OSError:
        return Found([], f"{file.name} cannot be read")
    found, bad = [], 0
    for number, text in enumerate(texts):
        value = as_object(text)
        if value is not None:
            found.append(value)
        elif text.strip() and number < len(texts) - 1:
            bad += 1
    return Found(found, f"{file.name}: {bad} lines cannot be read" if bad else None)


def as_object(text: bytes) -> dict[str, Any] | None:
    """A JSON object, or nothing."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def lines_from_the_end(file: Path, block: int = 1 << 14, most: int = 1 << 22) -> Iterator[dict[str, Any]]:
    """The objects of a file of lines, last first, without reading more of it than is asked for."""
    if file.exists() and not file.is_file():
        return
    try:
        with file.open("rb") as stream:
            where = stream.seek(0, os.SEEK_END)
            stop, rest = max(0, where - most), b""
            while where > stop:
                start = max(stop, where - block)
                stream.seek(start)
                rest = stream.read(where - start) + rest
                where = start
                head, _, whole = rest.partition(b"\n")
                if where > 0:
                    rest = head
                else:
                    whole, rest = rest, b""
                yield from filter(None, map(as_object, reversed(whole.split(b"\n"))))
                block *= 2
    except OSError:
        return


def text(value: Any) -> str | None:
    """A string, or nothing."""
    return value if isinstance(value, str) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float:
    """A finite number, or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        found = float(value)
    except OverflowError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def whole(value: Any) -> int | None:
    """An integer that fits an array, or nothing."""
    good = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62
    return value if good else None


def positive(value: Any) -> int | None:
    """An integer from 1, or nothing."""
    found = whole(value)
    return found if found is not None and found > 0 else None


def numbers(values: Any, length: int) -> Floats:
    """A list as floats, NaN for what is no number; all NaN where it is no list of that length."""
    if not isinstance(values, list) or len(values) != length:
        return np.full(length, np.nan)
    try:
        found = np.array(values, dtype=np.float64)  # None becomes NaN
    except (ValueError, TypeError, OverflowError):
        found = np.fromiter(map(number, values), dtype=np.float64, count=length)
    if found.shape != (length,):
        return np.full(length, np.nan)
    found[~np.isfinite(found)] = np.nan
    return found


def wholes(values: Any, length: int) -> Ints:
    """A list as integers, -1 for what is none; all -1 where it is no list of that length."""
    if not isinstance(values, list) or len(values) != length:
        return np.full(length, -1, dtype=np.int64)
    if all(type(value) is int for value in values) and max(map(abs, values), default=0) < 1 << 62:
        return np.array(values, dtype=np.int64)
    found = (whole(value) for value in values)
    return np.fromiter((-1 if v is None else v for v in found), dtype=np.int64, count=length)
