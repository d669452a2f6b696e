"""Text for people and from people: numbers, names of clients, cells of tables, YAML."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import yaml


def short(value: float, digits: int = 4) -> str:
    """With so many decimals if that is readable, else as 1.23e+26 or 1.2e-09."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "-Inf" if value < 0 else "Inf"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits}f}"
    return f"{value:.{max(digits, 1)}g}"


def counted(many: int, what: str) -> str:
    """1 row, 2 rows, 1,000 rows."""
    return f"{many:,} {what}{'s' * (many != 1)}"


def decimals(values: Sequence[float], digits: int = 4) -> int:
    """How many decimals show the smallest of these numbers with so many significant digits."""
    sizes = [abs(value) for value in values if math.isfinite(value) and abs(value) >= 1e-3]
    return max(0, digits - 1 - math.floor(math.log10(min(sizes)))) if sizes else digits


def fixed(value: float, digits: int) -> str:
    """A number with so many decimals, where that is readable; else 1.23e+26 or 1.2e-09."""
    if value and not 0.5 * 10**-digits <= abs(value) < 1e7:
        return f"{value:.3g}" if abs(value) >= 1 else f"{value:.1g}"
    return f"{value:.{digits}f}"


def cell(text: str) -> str:
    """Text for a table that a spreadsheet may open: an apostrophe before what it would compute, =HYPERLINK(...)."""
    risky = text[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{text}" if text and risky and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def listing(items: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else ""


def client_name(names: Sequence[str] | None, client: int) -> str:
    """client 'Ada', or client 3 for clients without names. Quotes distinguish a name from a number: client '7'."""
    known = names is not None and 0 <= client < len(names)
    return f"client '{names[client]}'" if names is not None and known else f"client {client}"


def as_written(names: Sequence[str] | None, client: str) -> int | str:
    """A client as a command line names it: by its name, or by its number.

    Where names are numbers themselves, a number is always a name: a mistyped one must not give another client's model.
    """
    if names and (client in names or names[0].isdecimal()):
        return client
    return int(client) if client.isdecimal() else client


def end_to_end(names: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """The names of all; none where some have none, or two would be the same."""
    found = [name for part in names if part is not None for name in part]
    return tuple(found) if None not in names and len(set(found)) == len(found) else None


NODES = 100_000  # of a document, with everything that is referred to (*name) written out: more is no configuration

LONGEST = 1 << 20  # characters of a document
DEPTH = 200  # brackets that are open: the time a reader needs grows with their square


class YamlError(ValueError):
    """A text is not YAML, or unfolds to more than any configuration has. The message is one line."""


def parse_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """The value of a YAML text. Raises `YamlError` and nothing else."""
    if len(text) > LONGEST or _depth(text) > DEPTH:
        raise YamlError(f"longer than {LONGEST:,} characters, or with more than {DEPTH} open brackets")
    try:
        value = yaml.load(text, loader)  # a SafeLoader: nothing but plain values
        _Sizes().of(value)
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except YamlError:
        raise
    # Besides its own errors the reader lets through those of int() and of datetime: 2026-13-01.
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, LookupError, AttributeError) as error:
        raise YamlError(" ".join(str(error).split())[:500]) from None
    return value


def _depth(text: str) -> int:
    """The most brackets that are open at some place, those in texts and comments counted too."""
    deepest = now = 0
    for mark in re.findall(r"[\[\]{}]", text):
        now = now + 1 if mark in "[{" else max(0, now - 1)
        deepest = max(deepest, now)
    return deepest


class _Sizes:
    """How many values a document has once every reference is written out. Ten lines can mean a billion values."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # by identity: a value that is referred to twice is the same object
        self._open: set[int] = set()

    def of(self, value: Any) -> int:
        if not isinstance(value, dict | list | tuple | set):
            return 1
        if id(value) in self._open:
            raise YamlError("it refers to itself")
        if id(value) not in self._known:
            self._open.add(id(value))
            parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            self._known[id(value)] = 1 + sum(map(self.of, parts))
            self._open.discard(id(value))
        if self._known[id(value)] > NODES:
            raise YamlError(f"it unfolds to more than {NODES:,} values")
        return self._known[id(value)]
