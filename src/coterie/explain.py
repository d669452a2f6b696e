"""pydantic's errors in plain words: which key, what is wrong, what to write instead."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from coterie.errors import CoterieError, suggest

RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")


def explain(error: ValidationError, prefix: str, kind: Any) -> CoterieError:
    """One line per key, each naming the full key."""
    faults: dict[str, list[tuple[str, str, str]]] = {}  # per key: type, what is wrong, what was given
    for fault in error.errors():
        loc = [str(part) for part in fault["loc"] if not _is_branch(str(part))]
        key = ".".join([*([prefix] if prefix else []), *loc])
        if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            keys = _keys(kind, loc[:-1]) + (["name"] if prefix and len(loc) == 1 else [])
            said = f"unknown key.{suggest(loc[-1], keys)}"
        elif fault["type"] == "missing":
            said = "required, but not given"
        else:
            said = fault["msg"].removeprefix("Value error, ")
        shown = not loc or isinstance(fault["input"], dict) or "unknown key" in said or fault["type"] == "missing"
        faults.setdefault(key, []).append((fault["type"], said, "" if shown else f" (got {fault['input']!r})"))
    lines = []
    for key, found in faults.items():
        # A union complains once per member; a value out of range has found its member.
        ranged = [f for f in found if f[0] in RANGE] or found
        words = " or ".join(dict.fromkeys(f[1] for f in ranged)) + ranged[0][2]
        lines.append(f"{key}: {words}" if key else words)
    return CoterieError("\n".join(lines))


def _is_branch(part: str) -> bool:
    """pydantic names the member of a union it tried; a user never wrote that."""
    return part in ("int", "float", "str") or "[" in part or part.startswith("constrained")


def _keys(kind: Any, path: list[str]) -> list[str]:
    for part in path:
        kind = get_type_hints(kind).get(part, object)
        kind = next((a for a in get_args(kind) if _fields(a)), kind)
    return _fields(kind)


def _fields(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return list(kind.model_fields)
    return [f.name for f in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
