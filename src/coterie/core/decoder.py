"""The strict decoder of everything that is read from files and from the network.

`parse_json` reads JSON, `decode` makes plain JSON a value of an expected type, and `OutlineReader` rebuilds what
`codec.pack` took apart. Anything else is a `DecodeError` that says what and where. Nothing is imported by name.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

from torch import Tensor

from coterie.core.errors import CoterieError

DEPTH = 64  # levels of nesting: far more than any value needs, far fewer than Python can handle
INTEGERS = range(-(1 << 128), 1 << 128)  # a seed may be that long
T = TypeVar("T")


class DecodeError(CoterieError):
    """A file or a message does not have the expected content."""

    code = "content-invalid"


class UnknownTypeError(DecodeError):
    """An outline names a type that is not expected."""

    code = "content-type-unknown"


# --------------------------------------------------------------------------------------------------------------- JSON


def parse_json(text: str | bytes) -> Any:
    """Parse strict JSON: no duplicate keys, no NaN or Infinity, no nesting beyond Python's limit."""
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        elif text.startswith("\ufeff"):
            raise DecodeError("not JSON: it begins with a byte order mark")
        return _STRICT.decode(text)
    except RecursionError:
        raise DecodeError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise DecodeError(f"not JSON: {error}") from None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise DecodeError(f"duplicate key {key[:80]!r}")
    return found


def _no_constants(name: str) -> object:
    raise DecodeError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constants)


def decode(value: object, kind: type[T], where: str = "", *, ignore_unknown: bool = False) -> T:
    """A JSON object as a dataclass. Fields with a default may be missing; lists become tuples.

    where: named in errors. ignore_unknown: skip keys that the dataclass does not have, instead of refusing them.
    """
    if not isinstance(value, dict):
        raise DecodeError(f"{where or kind.__name__}: expected an object, found {_shown(value)}")
    hints, prefix = field_types(typing.cast(type, kind)), f"{where}." if where else ""
    unknown = sorted(set(value) - set(hints))
    if unknown and not ignore_unknown:
        raise DecodeError(f"{prefix}{unknown[0][:80]}: unknown key", code="config-unknown-key")
    missing = [f.name for f in dataclasses.fields(kind) if _required(f) and f.name not in value]  # type: ignore[arg-type]
    if missing:
        raise DecodeError(f"{prefix}{missing[0]}: missing")
    given = {
        name: _decoded(value[name], hint, f"{prefix}{name}", ignore_unknown)
        for name, hint in hints.items()
        if name in value
    }
    return kind(**given)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _decoded(value: object, hint: Any, where: str, ignore_unknown: bool) -> Any:
    options = _options(hint)
    if value is None and type(None) in options:
        return None
    for option in options:
        if isinstance(option, type) and dataclasses.is_dataclass(option):
            return decode(value, option, where, ignore_unknown=ignore_unknown)
        origin, inner = typing.get_origin(option), typing.get_args(option)
        if origin is tuple and isinstance(value, list):
            each = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is Ellipsis else list(inner)
            if len(each) == len(value):
                parts = zip(value, each, strict=True)
                return tuple(_decoded(v, h, f"{where}[{i}]", ignore_unknown) for i, (v, h) in enumerate(parts))
        if fits(value, option):
            return value
    raise DecodeError(f"{where}: expected {_spoken(hint)}, found {_shown(value)}")


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ----------------------------------------------------------------------------------------------------------- outlines


class OutlineReader:
    """Rebuilds what `codec.pack` took apart, of the given dataclasses only.

    typed: check every field against its annotation, and require all fields; without it, the annotations of a user's
    own dataclasses need not be exact, and fields with a default may be missing.
    """

    def __init__(self, tensors: Sequence[Tensor], kinds: Sequence[type], *, typed: bool) -> None:
        self.tensors, self._typed = tensors, typed
        self.known = {kind.__name__: kind for kind in kinds}
        self.seen: dict[int, object] = {}
        self.used: set[int] = set()  # tensors

    def read(self, node: object, depth: int = 0) -> Any:
        """The value of an outline or a part of it. Lists become tuples."""
        if depth > DEPTH:
            raise DecodeError(f"an outline is at most {DEPTH} levels deep")
        if isinstance(node, list):
            return tuple([self.read(v, depth + 1) for v in node])
        if isinstance(node, dict):
            return self._object(node, depth)
        if isinstance(node, float) and not math.isfinite(node):
            raise DecodeError("a number is too large")
        if isinstance(node, int) and node not in INTEGERS:
            raise DecodeError("a whole number is too large")
        return node

    def _object(self, node: dict[str, Any], depth: int) -> Any:
        if len(node) == 1:
            (key, value), *_ = node.items()
            if key == "tensor" and type(value) is int:
                if not 0 <= value < len(self.tensors):
                    raise DecodeError(f"the outline names tensor {value} of {len(self.tensors)}")
                self.used.add(value)
                return self.tensors[value]
            if key == "same" and type(value) is int and value in self.seen:
                return self.seen[value]
            if key == "float" and value in ("nan", "inf", "-inf"):
                return float(value)
            if key == "map" and type(value) is dict:
                return {name: self.read(v, depth + 1) for name, v in value.items()}
        elif len(node) == 3 and set(node) == {"is", "number", "has"}:
            name, number, values = node["is"], node["number"], node["has"]
            if type(name) is str and type(number) is int and type(values) is dict:
                return self._build(name, number, values, depth)
        raise DecodeError(f"an outline cannot contain {str(node)[:80]}")

    def _build(self, name: str, number: int, values: Mapping[str, object], depth: int) -> object:
        if name not in self.known:
            known = ", ".join(sorted(self.known))
            raise UnknownTypeError(f"{name[:80]!r} is not one of the types expected here: {known}")
        if number in self.seen:
            raise DecodeError(f"{name}: the number {number} was used before")
        kind = self.known[name]
        fields = {field: self.read(value, depth + 1) for field, value in values.items()}
        if self._typed:
            _check_fields(kind, fields)
        try:
            built: object = kind(**fields)
        except CoterieError as error:
            raise DecodeError(str(error)) from None
        except TypeError as error:
            raise DecodeError(f"{name}: {error}") from None
        self.seen[number] = built
        return built


def _check_fields(kind: type, fields: Mapping[str, object]) -> None:
    hints = field_types(kind)
    if set(fields) != set(hints):
        odd = sorted(set(fields) ^ set(hints))[0]
        raise DecodeError(f"{kind.__name__}: {'unknown' if odd in fields else 'missing'} field {odd[:80]!r}")
    for field, value in fields.items():
        if not fits(value, hints[field]):
            expected = _spoken(hints[field])
            raise DecodeError(f"{kind.__name__}.{field}: expected {expected}, found a {type(value).__name__}")


# -------------------------------------------------------------------------------------------------------------- types


@cache
def field_types(kind: type) -> Mapping[str, Any]:
    """The fields a dataclass is built from, and their types."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if f.init}


def fits(value: object, hint: Any) -> bool:
    """Whether a value is exactly of a type: True is not a number, but a whole number fits where a float is expected."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if hint is Any:
        return True
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(fits(v, inner[0]) for v in value)
        return len(value) == len(inner) and all(map(fits, value, inner))
    if origin in (Mapping, dict):
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
