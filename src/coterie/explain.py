"""pydantic's errors in plain words: which key, what is wrong, what to write instead."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from coterie.errors import CoterieError, suggest


def explain(error: ValidationError, prefix: str, kind: Any) -> CoterieError:
    """One line per fault, each naming the full key."""
    lines = []
    seen = set()
    for fault in error.errors():
        loc = [str(part) for part in fault["loc"] if not _is_branch(str(part))]
        key = ".".join([*([prefix] if prefix else []), *loc])
        if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            line = f"{key}: unknown key.{suggest(loc[-1], _keys(kind, loc[:-1]))}"
        elif fault["type"] == "missing":
            line = f"{key}: required, but not given"
        else:
            said = fault["msg"].removeprefix("Value error, ")
            got = "" if isinstance(fault["input"], dict) or not loc else f" (got {fault['input']!r})"
            line = f"{key}: {said}{got}" if key else said
        if line not in seen:
            seen.add(line)
            lines.append(line)
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
