"""What is wrong with a request: an HTTP status, and a JSON body with the code, the message and the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.core.errors import CoterieError

# What is wrong with the run, or with the machine, and not with the request.
OURS = ("run-", "checkpoint-", "disk-", "component-", "config-", "method-", "model-failed", "trust-", "unspecified")


class RequestError(CoterieError):
    """A request that is not answered, and the HTTP status that says so."""

    def __init__(self, message: str, *, code: str, status: int = 422, field: str | None = None) -> None:
        super().__init__(message, code=code)
        self.status, self.field = status, field


@contextmanager
def about(field: str) -> Iterator[None]:
    """Errors are about this field of the request."""
    try:
        yield
    except RequestError:
        raise
    except CoterieError as error:
        raise RequestError(str(error), code=error.code, status=status_of(error), field=field) from None
    except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
        # Values of a kind that arrays cannot hold (a number of 400 digits, an object in a cell).
        raise RequestError(f"{field}: cannot be used ({error})", code="data-type", field=field) from None


@contextmanager
def about_labels() -> Iterator[None]:
    """Errors whose code says that labels are wrong are about these."""
    try:
        yield
    except CoterieError as error:
        if error.code != "data-labels":
            raise
        raise RequestError(str(error), code="data-labels", field="labels") from None


def status_of(error: CoterieError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    return 500 if error.code.startswith(OURS) else 422


def as_json(error: CoterieError) -> bytes:
    """The body of the answer."""
    said: dict[str, Any] = {"code": error.code, "message": str(error)}
    said["field"] = error.field if isinstance(error, RequestError) else None
    return json.dumps({"error": said}, separators=(",", ":")).encode()
