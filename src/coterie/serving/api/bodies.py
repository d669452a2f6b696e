"""The body of a request, read within its limits, whether or not its length was announced."""

from __future__ import annotations

import asyncio
from typing import Any

from coterie.serving.api.limits import ApiLimits
from coterie.serving.api.problems import RequestError

# The rest of a body that is too large is thrown away, so that the answer is heard: for so many seconds and bytes.
LINGER, REST = 1.0, 1 << 20


async def read_body(request: Any, limits: ApiLimits) -> bytes:
    """All of it, if it is JSON and not too large and does not take too long."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Other types can be sent by a page of any site without a question; JSON cannot.
        raise RequestError(
            "expected JSON: send the header 'Content-Type: application/json' (curl --json)",
            code="request-media-type",
            status=415,
        )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limits.body:
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.seconds):
            return await _collected(request, limits)
    except TimeoutError:
        raise RequestError(
            f"the body did not arrive within {limits.seconds:g} seconds", code="request-too-slow", status=408
        ) from None


async def _collected(request: Any, limits: ApiLimits) -> bytes:
    parts, size, stream = [], 0, request.stream()
    async for part in stream:
        size += len(part)
        if size > limits.body:
            await _drained(stream)
            raise _too_large(limits)
        parts.append(part)
    return b"".join(parts)


async def _drained(stream: Any) -> None:
    left = REST
    try:
        async with asyncio.timeout(LINGER):
            async for part in stream:
                left -= len(part)
                if left < 0:
                    return
    except TimeoutError:
        return


def _too_large(limits: ApiLimits) -> RequestError:
    return RequestError(
        f"the body is larger than {limits.body} bytes; send fewer rows at a time", code="request-too-large", status=413
    )
