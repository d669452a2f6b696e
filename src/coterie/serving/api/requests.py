"""The bodies of requests: JSON, read without a model for each row, since rows are most of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.decoder import DecodeError, parse_json
from coterie.core.errors import suggest
from coterie.serving.api.limits import ApiLimits
from coterie.serving.api.problems import RequestError

LONGEST_NAME = 200
LARGEST = 1e30  # of a number: beyond this, sums in single precision overflow
MAY_BE_LARGE = re.compile(rb"[0-9][eE]\+?[0-9]{2}|[0-9]{31}")  # what a body with a larger number has in it


@dataclass(frozen=True, eq=False)
class PredictRequest:
    """Predict for these rows, by the model of a client or of a cluster."""

    run: str | None
    client: int | str | None
    cluster: int | None
    rows: Any  # a list of samples (n, ...), or a table {column: [values]}
    count: int
    proba: bool

    @staticmethod
    def read(body: bytes, limits: ApiLimits) -> PredictRequest:
        """From the body of a request."""
        tree = _object(body, ("run", "client", "cluster", "rows", "proba"), ("rows",))
        client, cluster = _whole(tree.get("client")), _whole(tree.get("cluster"))
        if client is not None and (isinstance(client, bool) or not isinstance(client, int | str)):
            raise _wrong("client", "expected a client's number or name")
        if cluster is not None and (isinstance(cluster, bool) or not isinstance(cluster, int)):
            raise _wrong("cluster", "expected a cluster's number")
        if (client is None) == (cluster is None):
            given = "neither is given" if client is None else "both are given"
            raise _wrong("client", f"write either client or cluster; {given}")
        rows, count = _rows(tree["rows"], limits, body)
        return PredictRequest(_text(tree, "run"), client, cluster, rows, count, _flag(tree, "proba"))


@dataclass(frozen=True, eq=False)
class AssignRequest:
    """Find the cluster of a new client by its labelled samples."""

    run: str | None
    rows: Any
    labels: list[Any]
    keep: str | None  # a name by which /predict knows the client afterwards

    @staticmethod
    def read(body: bytes, limits: ApiLimits) -> AssignRequest:
        """From the body of a request."""
        tree = _object(body, ("run", "rows", "labels", "keep"), ("rows", "labels"))
        rows, count = _rows(tree["rows"], limits, body)
        labels, keep = tree["labels"], _text(tree, "keep")
        if not isinstance(labels, list):
            raise _wrong("labels", "expected a list, one label for each row")
        if any(isinstance(label, bool) for label in labels):
            raise _wrong("labels", "true and false are no labels; give numbers, or the names of the classes")
        if len(labels) != count:
            raise RequestError(
                f"labels: {len(labels)} for {count} rows; give one for each", code="data-shape", field="labels"
            )
        if keep is not None and not 0 < len(keep) <= LONGEST_NAME:
            raise _wrong("keep", f"expected a name of at most {LONGEST_NAME} characters")
        return AssignRequest(_text(tree, "run"), rows, labels, keep)


def _object(body: bytes, known: Sequence[str], required: Sequence[str]) -> dict[str, Any]:
    try:
        tree = parse_json(body)
    except DecodeError as error:
        raise RequestError(f"the body: {error}", code="request-malformed", status=400) from None
    if not isinstance(tree, dict):
        raise RequestError(
            f"expected a JSON object with the keys {', '.join(known)}", code="request-malformed", status=400
        )
    for key in tree:
        if key not in known:
            raise _wrong(key[:LONGEST_NAME], f"unknown key.{suggest(key[:LONGEST_NAME], known)}")
    for key in required:
        if key not in tree:
            raise _wrong(key, "required, but not given")
    return tree


def _rows(rows: object, limits: ApiLimits, body: bytes) -> tuple[Any, int]:
    """Samples as a list, or as a table {column: values}; and how many there are. body: what they were written in."""
    if MAY_BE_LARGE.search(body) and _has_large(rows):
        raise RequestError(
            f"rows: a number is beyond {LARGEST:g}; are the inputs in the units of the training data?",
            code="data-not-finite",
            field="rows",
        )
    if isinstance(rows, dict):
        if not rows or not all(isinstance(values, list) for values in rows.values()):
            raise _wrong("rows", "expected a list of values for each column: {column: [values]}")
        count = max(map(len, rows.values()))
    elif isinstance(rows, list):
        count = len(rows)
    else:
        raise _wrong("rows", "expected a list of rows, or {column: [values]}")
    if not count:
        raise RequestError("rows: there are none; give at least one", code="data-empty", field="rows")
    if count > limits.rows:
        raise RequestError(
            f"rows: {count}, but a request may have {limits.rows}; send several requests",
            code="request-too-large",
            status=413,
            field="rows",
        )
    if isinstance(rows, list) and isinstance(rows[0], dict):
        return _columns(rows), count
    if (b"true" in body or b"false" in body) and isinstance(rows, list) and _has_boolean(rows):
        raise RequestError("rows: true and false are not numbers; write 1 and 0", code="data-type", field="rows")
    return rows, count


def _has_boolean(rows: list[Any]) -> bool:
    return any(isinstance(one, bool) or (isinstance(one, list) and _has_boolean(one)) for one in rows)


def _has_large(rows: object) -> bool:
    if isinstance(rows, dict):
        return any(map(_has_large, rows.values()))
    if isinstance(rows, list):
        return any(map(_has_large, rows))
    return isinstance(rows, int | float) and abs(rows) > LARGEST


def _columns(rows: list[Any]) -> Mapping[str, list[Any]]:
    """Rows that name their values, as a table of the columns of the first one."""
    names = list(rows[0])
    if not names:
        raise _wrong("rows", "row 0 has no values")
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise _wrong("rows", f"row {place} is not an object, as row 0 is")
        if row.keys() != rows[0].keys():
            name = next(iter(rows[0].keys() ^ row.keys()))
            has, lacks = (place, 0) if name in row else (0, place)
            raise RequestError(
                f"rows: row {has} has a column '{name[:LONGEST_NAME]}', row {lacks} has none; give all rows the same "
                "columns, null where a value is missing",
                code="data-column-unknown",
                field="rows",
            )
    return {name: [row[name] for row in rows] for name in names}


def _whole(value: Any) -> Any:
    """JSON does not tell 1.0 from 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text(tree: Mapping[str, Any], key: str) -> str | None:
    found = tree.get(key)
    if found is None or isinstance(found, str):
        return found
    raise _wrong(key, "expected text")


def _flag(tree: Mapping[str, Any], key: str) -> bool:
    found = tree.get(key, False)
    if isinstance(found, bool):
        return found
    raise _wrong(key, "expected true or false")


def _wrong(field: str, what: str) -> RequestError:
    return RequestError(f"{field}: {what}", code="request-invalid", field=field)
