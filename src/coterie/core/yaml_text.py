"""YAML that somebody wrote: read without running anything, and refused in words where it cannot be read."""

from __future__ import annotations

import re
from typing import Any

import yaml

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
