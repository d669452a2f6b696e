"""An outline becomes a tree again: of the types that are expected and no other, every field checked against its own."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from pydantic import ValidationError
from torch import Tensor

from coterie.errors import CoterieError

DEPTH = 64  # of an outline: far more than any task needs, far less than Python can stand
INTEGERS = range(-(1 << 128), 1 << 128)  # a seed may be that long


class WireError(CoterieError):
    """What came over the network is not what was agreed on."""


class Reader:
    """Builds the tree; whatever it builds is checked once, so that naming it again costs nothing."""

    def __init__(self, tensors: Sequence[Tensor], kinds: Sequence[type]) -> None:
        self.tensors = tensors
        self.known = {kind.__name__: kind for kind in kinds}
        self.seen: dict[int, object] = {}

    def read(self, node: object, depth: int) -> Any:
        """What an outline, or a part of it, means."""
        if depth > DEPTH:
            raise WireError(f"an outline is at most {DEPTH} levels deep")
        if isinstance(node, list):
            return tuple(self.read(v, depth + 1) for v in node)
        if isinstance(node, float) and not math.isfinite(node):
            raise WireError("a number is too large")
        if isinstance(node, int) and node not in INTEGERS:
            raise WireError("a whole number is too large")
        if not isinstance(node, dict):
            return node
        match node:
            case {"tensor": int(number)} if len(node) == 1 and type(number) is int:
                if not 0 <= number < len(self.tensors):
                    raise WireError(f"the outline names tensor {number} of {len(self.tensors)}")
                return self.tensors[number]
            case {"same": int(number)} if len(node) == 1 and type(number) is int and number in self.seen:
                return self.seen[number]
            case {"float": "nan" | "inf" | "-inf" as text} if len(node) == 1:
                return float(text)
            case {"map": dict(values)} if len(node) == 1:
                return {name: self.read(v, depth + 1) for name, v in values.items()}
            case {"is": str(name), "number": int(number), "has": dict(values)} if len(node) == 3:
                return self._build(name, number, values, depth)
        raise WireError(f"nothing that can be read: {str(node)[:80]}")

    def _build(self, name: str, number: int, values: Mapping[str, object], depth: int) -> object:
        if name not in self.known:
            known = ", ".join(sorted(self.known))
            raise WireError(f"{name[:80]!r} is not one of the types expected here: {known}")
        if type(number) is not int or number in self.seen:
            raise WireError(f"{name}: a number that was given before")
        wanted = _hints(self.known[name])
        if set(values) != set(wanted):
            odd = sorted(set(values) ^ set(wanted))[0]
            raise WireError(f"{name}: {'unknown' if odd in values else 'missing'} field {odd[:80]!r}")
        fields = {field: self.read(value, depth + 1) for field, value in values.items()}
        for field, value in fields.items():
            if not fits(value, wanted[field]):
                raise WireError(f"{name}.{field}: a {type(value).__name__} where {_spoken(wanted[field])} belongs")
        try:
            built: object = self.known[name](**fields)
        except ValidationError as error:
            first = error.errors()[0]
            raise WireError(f"{'.'.join(map(str, (name, *first['loc'])))}: {first['msg']}") from None
        self.seen[number] = built
        return built


# -------------------------------------------------------------------------------------------------------------- types


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """The fields a dataclass is built from, and their types."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type, to the letter: True is no number, and a whole number may stand for any other."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(fits(v, inner[0]) for v in value)
        return len(value) == len(inner) and all(map(fits, value, inner))
    if origin is Mapping:
        return isinstance(value, dict) and all(fits(v, inner[1]) for v in value.values())
    if hint is float:
        return type(value) in (float, int)
    if hint is None:
        return value is None
    if hint is Tensor:
        return isinstance(value, Tensor)
    return type(value) is hint


def _spoken(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else re.sub(r"\b(\w+\.)+(?=\w)", "", str(hint))
