"""What the rows and labels of a run look like, as JSON Schema."""

from __future__ import annotations

from typing import Any, TypeAlias

from coterie.data.columns import InputColumn, TableScale
from coterie.data.federation import Federation
from coterie.serving.api.requests import LARGEST
from coterie.training.data_record import DataRecord
from coterie.training.result import Result

Json: TypeAlias = dict[str, Any]  # a JSON Schema, only written here
NUMBER: Json = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
FREE: Json = {"anyOf": [{"type": "array", "minItems": 1}, {"type": "object", "minProperties": 1}]}


def rows_schema(result: Result[Any] | None) -> Json:
    """Rows as arrays; where columns have names also as objects, and as an object of columns."""
    if result is None:
        return FREE | {"description": "A list of rows, or an object with a list for each column."}
    known = result.known
    if not isinstance(known, Federation | DataRecord):
        return FREE | {"description": "Rows as the model takes them: clients of this run scale their data themselves."}
    named = _columns(known)
    if named is None:
        return {"type": "array", "minItems": 1, "items": _nested(known.input_shape)}
    in_order = {
        "type": "array",
        "prefixItems": list(named.values()),
        "items": False,
        "minItems": len(named),
    }
    by_name = {"type": "object", "properties": named, "required": list(named)}
    return {
        "anyOf": [
            {"type": "array", "minItems": 1, "items": in_order, "description": "Values in the order of the columns."},
            {"type": "array", "minItems": 1, "items": by_name, "description": "Values by name."},
            {
                "type": "object",
                "properties": {name: {"type": "array", "minItems": 1, "items": one} for name, one in named.items()},
                "required": list(named),
                "description": "A list of values for each column.",
            },
        ]
    }


def label_schema(result: Result[Any] | None) -> Json:
    """One label, or one target."""
    if result is None:
        return {}
    if result.class_names is not None:
        return {"type": "string", "enum": list(result.class_names)}
    known = result.known
    if not isinstance(known, Federation | DataRecord):
        return {}
    if known.kind == "classification":
        return {"type": "integer", "minimum": 0, "maximum": known.outputs - 1}
    return NUMBER if known.outputs == 1 else _nested((known.outputs,))


def row_example(result: Result[Any]) -> Any:
    """A row of zeros, by name where columns have names."""
    known = result.known
    if not isinstance(known, Federation | DataRecord):
        return []
    scale = known.scales[0]
    if isinstance(scale, TableScale):
        return {c.name: "" if c.words else c.values[0] if c.values else 0.0 for c in scale.columns}
    if known.features is not None and len(known.input_shape) == 1:
        return dict.fromkeys(known.features, 0.0)
    row: Any = 0.0
    for size in reversed(known.input_shape):
        row = [row] * size
    return row


def _columns(known: Federation | DataRecord) -> dict[str, Json] | None:
    scale = known.scales[0]
    if isinstance(scale, TableScale):
        return {column.name: _cell(column) for column in scale.columns}
    if known.features is not None and len(known.input_shape) == 1:
        return dict.fromkeys(known.features, NUMBER)
    return None


def _cell(column: InputColumn) -> Json:
    # By name true and false are taken for 1 and 0, as a table's cells are.
    number = dict(NUMBER) | {"type": ["number", "boolean"]}
    text: Json = {"type": ["string", "number", "boolean"]}
    kind = number if column.values is None and not column.words else text
    return {"anyOf": [kind, {"type": "null"}]} if column.fills else kind


def _nested(shape: tuple[int, ...]) -> Json:
    """Arrays in arrays, of just these lengths."""
    if not shape:
        return NUMBER
    return {"type": "array", "items": _nested(shape[1:]), "minItems": shape[0], "maxItems": shape[0]}
