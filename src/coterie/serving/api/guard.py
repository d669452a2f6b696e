"""Who may ask, before anything is read: the token, the name of the host; and every answer is counted."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

from coterie.serving.address import is_local
from coterie.serving.api.metrics import Metrics
from coterie.serving.api.problems import RequestError, as_json

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
OPEN = ("/healthz",)  # answered without a token: it says nothing but that the service is there


class ApiGuard:
    """The outermost layer of the application."""

    def __init__(self, app: App, metrics: Metrics, token: str | None, local: bool) -> None:
        """local: only this machine can reach the service, so requests must call it by a local name."""
        self.app, self.metrics, self.local = app, metrics, local
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refused = self._refused(scope)
            if refused is None:
                await self.app(scope, receive, watched)
            else:
                await _say(refused, watched)
        finally:
            path = getattr(scope.get("route"), "path", None) or scope.get("coterie.path", "other")
            self.metrics.answered(path, status, time.perf_counter() - began)

    def _refused(self, scope: Scope) -> RequestError | None:
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        if self.local and not _called_local(headers.get(b"host", b"")):
            # Or a page of another site, whose name points here, could read what only this machine may.
            return RequestError(
                "this service answers to 127.0.0.1 and localhost only", code="request-refused", status=403
            )
        if self._token is None or scope["path"] in OPEN:
            return None
        scheme, _, given = headers.get(b"authorization", b"").strip().partition(b" ")
        if hmac.compare_digest(given.strip(), self._token) and scheme.lower() == b"bearer":  # in constant time
            return None
        return RequestError(
            "a token is required: send the header 'Authorization: Bearer TOKEN'",
            code="request-unauthorized",
            status=401,
        )


@lru_cache(maxsize=256)
def _called_local(host: bytes) -> bool:
    text = host.decode("latin-1")
    name = text if text.endswith("]") else text.rsplit(":", 1)[0]
    return is_local(name)


async def _say(error: RequestError, send: Send) -> None:
    body = as_json(error)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
